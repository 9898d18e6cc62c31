"""Reports: tables and figures of studies and comparisons, as one page of HTML and in Markdown."""
