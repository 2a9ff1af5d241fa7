"""The pages that show results: docs/gallery.md, and marked places in other pages."""
