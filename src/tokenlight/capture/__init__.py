"""The only place that touches a live model: attention seam, rewiring, tape."""
