// Begins the program of the page, which stands in the file as text, once the page has been painted.
requestAnimationFrame(() => setTimeout(() => {
  const text = byId("program"), program = make("script");
  program.textContent = text.textContent;
  text.replaceWith(program);
}));
