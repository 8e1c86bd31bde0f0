// Formulas stand in the pages as TeX in elements of this class; KaTeX sets them.
for (const element of document.querySelectorAll(".arithmatex")) {
  const [, tex] = element.textContent.match(/^\s*\\[([](.*)\\[)\]]\s*$/s);
  katex.render(tex, element, { displayMode: element.tagName === "DIV", throwOnError: false });
}
