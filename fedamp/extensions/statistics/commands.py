"""Define the command ``fedamp statistics``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from fedamp.base.start import Later
from fedamp.cli.terminal import AsJson, Overrides, load_scenario, print_answer, print_paths
from fedamp.errors import fails_alone

if TYPE_CHECKING:
    from fedamp.report import tables
else:
    tables = Later("fedamp.report.tables")  # the plan and the accountant come with it


def statistics(
    source: Annotated[str, Argument(metavar="FILE", help="a YAML file with questions, or the folder of such a run")],
    overrides: Overrides,
    store: Annotated[
        Path, Option("--out", help="folder of all statistics runs, with the questions asked so far")
    ] = Path("statistics"),
    scenario: Annotated[
        Path | None,
        Option("--scenario", help="write the whole scenario of new questions for a deployment, and ask nothing"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer questions about people with noise: counts, means, tables, quantiles, survival.

    All questions of the file share one release, which is charged once.
    A question that was asked before gets its stored answer at no cost.
    Of a run folder, for example of a deployment, the answers are shown.
    """
    from fedamp.extensions.statistics.answers import FILE, released_answers
    from fedamp.extensions.statistics.asked import ask_questions, new_questions
    from fedamp.server.observers import Forewarning, Observers

    again, folder = list[str](), Path(source)
    if folder.is_dir():
        answers = released_answers(folder)
        answers.write(folder / FILE)
    else:
        asked = load_scenario(source, overrides)
        if scenario is not None and (new := new_questions(asked, store)) is not None:
            scenario.write_text(new.to_yaml())
            print_paths("scenario", scenario)
            return
        answers, again = ask_questions(asked, store, Observers([Forewarning(None)]))
        folder = store
    with fails_alone("the page and the picture"):  # matplotlib may be missing
        from fedamp.extensions.statistics.page import answers_picture, write_page
        from fedamp.report import style

        page = folder / ("answers.html" if folder != store else f"{answers.scenario}.html")
        write_page(answers, page)
        if picture := answers_picture(answers):
            style.save_all({"answers" if folder != store else answers.scenario: picture}, folder / "plots")
        print_paths("page", page, unless=as_json)
    print_answer(answers.content() | {"asked_before": again}, as_json, _answers_table)


def _answers_table(found: dict[str, Any]) -> Any:
    """Make the table of the answers."""
    from fedamp.extensions.statistics.answers import ReleasedAnswers
    from fedamp.extensions.statistics.page import cost_in_words, rows_of

    again = found.pop("asked_before")
    answers = ReleasedAnswers.model_validate(found)
    told = f"; stored answers: {', '.join(again)}" if again else ""
    return tables.listing(
        rows_of(answers),
        {name: name for name in ("question", "number", "value (interval)")},
        cost_in_words(answers) + told,
    )
