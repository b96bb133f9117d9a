"""The report of a run: HTML with plots, Markdown and JUnit XML, made from the evidence alone."""
