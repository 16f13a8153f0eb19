"""One file, one method; the file's name is the method's name."""
