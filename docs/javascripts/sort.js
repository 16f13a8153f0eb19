// Long tables sort by a click on a head: numbers by size (the first number of a cell), words by letter.
(function () {
  const FEWEST_ROWS = 6;

  function sortKey(cell) {
    const words = cell.textContent.trim();
    const number = words.replace(/−/g, "-").match(/-?\d[\d,]*\.?\d*/);
    return { words: words, number: number ? parseFloat(number[0].replace(/,/g, "")) : NaN };
  }

  function sortRows(table, column, isDescending) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => ({ row: row, key: sortKey(row.cells[column]) }));
    const isNumeric = column > 0 && rows.some((entry) => !isNaN(entry.key.number));
    rows.sort(function (a, b) {
      if (!isNumeric) return a.key.words.localeCompare(b.key.words);
      if (isNaN(a.key.number)) return 1;
      if (isNaN(b.key.number)) return -1;
      return a.key.number - b.key.number;
    });
    if (isDescending) rows.reverse();
    rows.forEach((entry) => body.appendChild(entry.row));
  }

  function prepare(table) {
    if (!table.tHead || !table.tBodies[0] || table.tBodies[0].rows.length < FEWEST_ROWS) return;
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      if (!head.textContent.trim()) return;
      head.classList.add("sortable");
      head.tabIndex = 0;
      head.title = "Sort by this column";
      function toggle() {
        const isDescending = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
        sortRows(table, column, isDescending);
      }
      head.addEventListener("click", toggle);
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          toggle();
        }
      });
    });
  }

  document.querySelectorAll("table").forEach(prepare);
})();
