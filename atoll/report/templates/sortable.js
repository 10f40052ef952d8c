for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const key = (row, i) => {
    const cell = row.cells[i], text = (cell.dataset.value ?? cell.textContent).trim(), number = parseFloat(text.replace("−", "-").replace(/,/g, ""));
    return cell.classList.contains("number") ? (isNaN(number) ? Infinity : number) : text.toLowerCase();
  };
  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = (a, b) => { const x = key(a, i), y = key(b, i); return (x > y) - (x < y); };
      body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
    });
  });
}
