// Everything on this page can be read without this script. It adds two comforts: pointing at a
// contender fades the others in every picture, and a click on a column's head sorts its table.
(function () {
  "use strict";
  var named = Array.prototype.slice.call(document.querySelectorAll("[data-name]"));
  function point(name) {
    named.forEach(function (element) {
      element.classList.toggle("faded", name !== null && element.dataset.name !== name);
    });
  }
  document.addEventListener("pointerover", function (event) {
    var over = event.target.closest ? event.target.closest("[data-name]") : null;
    point(over ? over.dataset.name : null);
  });
  document.addEventListener("pointerleave", function () { point(null); });

  function value(row, column) {
    var text = row.cells[column].textContent.trim();
    var number = parseFloat(text.replace(/,/g, "").replace("−", "-"));
    return isNaN(number) ? text.toLowerCase() : number;
  }
  function sort(head) {
    var table = head.closest("table");
    var column = head.cellIndex;
    var isRising = head.getAttribute("aria-sort") !== "ascending";
    var rows = Array.prototype.slice.call(table.tBodies[0].rows);
    rows.sort(function (one, other) {
      var left = value(one, column);
      var right = value(other, column);
      if (typeof left !== typeof right) {
        return typeof left === "number" ? -1 : 1;
      }
      var order = left < right ? -1 : left > right ? 1 : 0;
      return isRising ? order : -order;
    });
    rows.forEach(function (row) { table.tBodies[0].appendChild(row); });
    Array.prototype.forEach.call(head.parentNode.cells, function (cell) {
      cell.removeAttribute("aria-sort");
    });
    head.setAttribute("aria-sort", isRising ? "ascending" : "descending");
  }
  Array.prototype.forEach.call(document.querySelectorAll("thead th"), function (head) {
    head.tabIndex = 0;
    head.classList.add("sortable");
    head.addEventListener("click", function () { sort(head); });
    head.addEventListener("keydown", function (event) {
      if (event.key === "Enter") { sort(head); }
    });
  });
})();
