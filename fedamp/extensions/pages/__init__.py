"""Pages about runs: reports, releases with the papers of a board, and a live page."""

from fedamp.extension import Extension

extension = Extension(
    "pages",
    commands={
        "report": "fedamp.extensions.pages.commands:report",
        "watch": "fedamp.extensions.pages.commands:watch",
        "release": "fedamp.extensions.pages.commands:release",
    },
    follows={"report": "compare", "watch": "report", "release": "total"},
    pages={"report": "fedamp.extensions.pages.page:write_report"},
)
