"""Write pages about runs: reports, releases with the papers of a board, and a live page (docs/releasing.md).

The commands are ``fedamp report`` (:mod:`~fedamp.extensions.pages.page`), ``fedamp release``
(:mod:`~fedamp.extensions.pages.release`, :mod:`~fedamp.extensions.pages.board`) and ``fedamp watch``
(:mod:`~fedamp.extensions.pages.watch`). Each needs the extra ``report``.

Reports and releases hold what was released and what is public, and no number computed from private data without noise.
The live page has such numbers, so it is never a file, and is served to this machine's user alone. No key of a scenario
is added.
"""

from fedamp.extension import Extension

extension = Extension(
    "pages",
    commands={
        "report": "fedamp.extensions.pages.commands:report",
        "watch": "fedamp.extensions.pages.commands:watch",
        "release": "fedamp.extensions.pages.commands:release",
    },
    help_groups={"report": "Compare", "watch": "Train", "release": "People"},
    pages={"report": "fedamp.extensions.pages.page:write_report"},
)
