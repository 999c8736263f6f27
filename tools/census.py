"""Every model type of transformers and every kind of model of timm: which learned tables it has, and what resize does.

    python tools/census.py                         # all of them: about half an hour on one core
    python tools/census.py --only beit,swin        # a few, without a page
    python tools/census.py --families              # also writes what is known of their tables to families.json

Each type is built small with random weights, in a process of its own with a limit of time and of memory. Its tables
are found without posembed (``census_models.py``). It is saved as its library saves it, inspected, and resized to twice
the length, or to 1.5 times and twice the image size. The result must load without a missing, unexpected or mismatched
key, run at the new size, keep the rows that a resize keeps, and give an old text the old answer
(``census_checks.py``).

The results of each type are kept as JSON in the folder of --work, so that an interrupted census goes on where it was;
--again repeats it. The pages are benchmarks/results/census.md and census-timm.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import census_models
import torch
from census_checks import examine
from census_families import write_families
from census_runs import last_frame
from census_settings import why_not_built

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import pages

SECONDS = 200  # of processor time for a type
MEMORY = 12 * 2**30
NO_NEED = re.compile(r"needs? no resize")
OUTCOMES = ("in full", "in part", "no need", "refused", "WRONG", "crashed")


class OutOfTimeError(Exception):
    pass


def census_of(library: str, name: str, folder: Path) -> list[dict[str, Any]]:
    """Returns the results of all models of one type of transformers, or of one file of timm."""
    models = census_models.timm_models if library == "timm" else census_models.transformers_models
    results: list[dict[str, Any]] = []
    found = models(name)
    while True:
        try:
            model = next(found, None)
        except OutOfTimeError:
            raise
        except Exception as error:
            return [*results, {"name": name, "outcome": "not built", "why": last_frame(error)}]
        if model is None:
            return results
        began = time.process_time()
        try:
            result = examine(model, folder / f"{len(results)}")
        except OutOfTimeError:
            result = {"name": model.name, "outcome": "crashed", "why": f"more than {SECONDS} s"}
        except Exception as error:
            result = {"name": model.name, "outcome": "not examined", "why": last_frame(error)}
        results.append({**result, "library": library, "type": name, "seconds": time.process_time() - began})
        shutil.rmtree(folder / f"{len(results) - 1}", ignore_errors=True)


def out_of_time(*_: object) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (4 * SECONDS, 4 * SECONDS))
    raise OutOfTimeError


def in_process(library: str, name: str, file: Path) -> int:
    """Examines a type in a child process, which inherits the imports, and returns its process id."""
    child = os.fork()
    if child:
        return child
    try:
        signal.signal(signal.SIGXCPU, out_of_time)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, 4 * SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        with (
            tempfile.TemporaryDirectory() as folder,
            file.with_suffix(".log").open("w") as log,
            contextlib.redirect_stdout(log),
            contextlib.redirect_stderr(log),
        ):
            results = census_of(library, name, Path(folder))
        file.write_text(json.dumps(results, indent=1))
    except BaseException as error:
        file.write_text(json.dumps([{"name": name, "library": library, "type": name, "outcome": "crashed",
                                     "why": last_frame(error)}]))  # fmt: skip
    finally:
        os._exit(0)


def take(settings: argparse.Namespace, todo: Iterable[tuple[str, str]]) -> None:
    """Examines all types, ``--jobs`` at a time."""
    running: dict[int, tuple[str, str, float]] = {}
    for library, name in [*todo, *[("", "")] * settings.jobs]:
        if len(running) >= settings.jobs or (running and not name):
            child, status = os.wait()
            done_library, done, began = running.pop(child)
            file = file_of(settings.work, done_library, done)
            if not file.exists():
                file.write_text(json.dumps([{"name": done, "library": done_library, "type": done, "outcome": "crashed",
                                             "why": f"the process ended with status {status}"}]))  # fmt: skip
            outcomes = [result.get("outcome", "no table") for result in json.loads(file.read_text())]
            print(f"{done_library} {done}: {', '.join(outcomes)} ({time.time() - began:.0f} s)", flush=True)
        if name:
            file = file_of(settings.work, library, name)
            if settings.again or not file.exists():
                file.unlink(missing_ok=True)
                running[in_process(library, name, file)] = library, name, time.time()
        elif not running:
            break


def file_of(work: Path, library: str, name: str) -> Path:
    return work / f"{library}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.json"


# The page


def page(library: str, results: list[dict[str, Any]], missing: list[str]) -> list[str]:
    lines = [
        f"# A census of learned position tables: {library}", "",
        f"    python tools/census.py --library {library}", "",
        pages.machine(library), "",
        "Each type was built small with random weights, saved, inspected, resized to twice the length, or to 1.5 times "
        "and twice the image size, loaded again and run. A model is resized in full if some call resized each of its "
        "learned tables that needs a resize. It has no need of one if it reads inputs of other sizes with the same "
        "rows, as posembed says of each of its tables when it inspects the model, or refuses to resize that table. "
        '"no" under "runs" means that the census has no inputs for the model. The script says what is checked.', "",
    ]  # fmt: skip
    if missing:
        done = len({result["type"] for result in results})
        lines += [
            f"**Not complete**: {done} of {done + len(missing)} types of {library} are examined. They were chosen for "
            "the kinds of their tables, so the totals are not shares of all types.", "",
        ]  # fmt: skip
    return [*lines, *totals(results), *details(results)]


def needs(result: dict[str, Any]) -> dict[str, Any]:
    """Returns a result with the tables left out that need no resize, as inspect says of each, or the refusal to resize
    this table alone. Wrong results and crashes stay."""
    inspected, keys = result.get("inspect", {}), result.get("keys", {})
    said = {name: inspected.get(keys.get(name)) for name in result.get("tables", {})}
    alone = {call["tables"][0]: call for call in result.get("calls", ()) if len(call["tables"]) == 1}
    for name, call in alone.items():
        refused = call["outcome"] == "refused" and call["why"].startswith(f"{keys.get(name)}: ")
        if not said.get(name) and refused:
            said[name] = call["why"]
    unneeded = {name for name, words in said.items() if NO_NEED.search(words or "")}
    if not unneeded or result["outcome"] not in ("in part", "refused"):
        return result
    calls = [call for call in result["calls"] if not set(call["tables"]) <= unneeded]
    resized = {name for call in calls for name in call.get("resized", ())}
    outcome = result["outcome"]
    if not set(learned(result)) - unneeded:
        outcome = "no need"
    elif set(learned(result)) - unneeded <= resized and outcome == "in part":
        outcome = "in full"
    return {**result, "outcome": outcome}


def learned(result: dict[str, Any]) -> list[str]:
    return [name for name, table in result.get("tables", {}).items() if not table["fixed"]]


def totals(results: list[dict[str, Any]]) -> list[str]:
    built = [result for result in results if "tables" in result]
    with_tables = [result for result in built if learned(result)]
    rows = []
    for label, mine in (
        ("types", [result for result in with_tables if "=" not in result["name"]]),
        ("types with another setting", [result for result in with_tables if "=" in result["name"]]),
    ):
        counts = Counter(result["outcome"] for result in mine)
        rows.append((label, str(len(mine)), *(str(counts[outcome]) for outcome in OUTCOMES)))
    unbuilt = sum("tables" not in result for result in results)
    types = len({result["type"] for result in results})
    base = sum("=" not in result["name"] for result in built)
    return [
        f"{types} types; {base} could be built, {unbuilt} not.", "",
        *pages.table(("models with learned tables", "number", *OUTCOMES), rows),
    ]  # fmt: skip


def details(results: list[dict[str, Any]]) -> list[str]:
    rows = [row(result) for result in results if learned(result)]
    fixed = [result["name"] for result in results if result.get("tables") and not learned(result)]
    none = [result["name"] for result in results if "tables" in result and not result["tables"]]
    unbuilt = [
        (result["name"], cell(why_not_built(result["name"], result.get("why", ""))))
        for result in results
        if "tables" not in result
    ]
    return [
        *pages.table(("model", "learned tables", "depend on", "listed by inspect", "resize", "runs", "why not"), rows),
        f"**Only fixed tables**: {', '.join(fixed) or 'none'}.", "",
        f"**No table**: {', '.join(none) or 'none'}.", "",
        *(pages.table(("not built or not examined", "why"), unbuilt) if unbuilt else []),
    ]  # fmt: skip


def row(result: dict[str, Any]) -> tuple[str, ...]:
    tables = {name: table for name, table in result["tables"].items() if not table["fixed"]}
    shown = Counter(f"`{each_layer(name)}` {'x'.join(map(str, table['shape']))}" for name, table in tables.items())
    sizes = sorted({size for table in tables.values() for size in table["sizes"]})
    keys, listed = result.get("keys", {}), result.get("inspect", {})
    heard = sum(keys.get(name) in listed for name in tables)
    runs = [call.get("runs") for call in result["calls"] if call["outcome"] == "resized"]
    return (
        result["name"],
        "; ".join(f"{name}{f' ({count} times)' if count > 1 else ''}" for name, count in list(shown.items())[:4])
        + (f"; {len(shown) - 4} more" if len(shown) > 4 else ""),
        ", ".join(f"`{size}`" for size in sizes) or "no size",
        f"{heard} of {len(tables)}",
        result["outcome"],
        "yes" if any(runs) else "no" if runs else "",
        cell("; ".join(dict.fromkeys(reasons(result)))),
    )


def each_layer(name: str) -> str:
    return re.sub(r"[.]\d+(?=[.])", ".N", name)


def reasons(result: dict[str, Any]) -> Iterator[str]:
    for call in result["calls"]:
        if call["wrong"]:
            yield "; ".join(call["wrong"])
        elif call["outcome"] != "resized":
            yield f"{call['size'] or 'no size'}: {call['why']}"


def cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= 400 else f"{text[:397]}..."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="types of transformers and files of timm, separated by commas")
    parser.add_argument("--library", choices=("transformers", "timm"), help="only this library")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "posembed-census")
    parser.add_argument("--page", action="store_true", help="only write the page, from what is done already")
    parser.add_argument("--families", action="store_true", help="also write families.json")
    parser.add_argument("--again", action="store_true", help="repeat what is done already")
    parser.add_argument("--out", default="census", help="the name of the page in benchmarks/results")
    settings = parser.parse_args()
    settings.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if settings.page:
        census_models.import_timm()
    else:
        prepare()
    todo = [("transformers", name) for name in census_models.transformers_types()]
    todo += [("timm", name) for name in census_models.timm_modules()]
    todo = [each for each in todo if settings.library in (None, each[0])]
    if settings.only is not None:
        wanted = settings.only.split(",")
        todo = sorted((each for each in todo if each[1] in wanted), key=lambda each: wanted.index(each[1]))
    same = census_models.same_classes()
    if not settings.page:
        take(settings, [(library, name) for library, name in todo if name not in same or library == "timm"])
    results, missing = [], []
    for library, name in todo:
        first = same.get(name, name) if library == "transformers" else name
        if not file_of(settings.work, library, first).exists():
            missing.append(f"{library} {name}")
            continue
        for result in json.loads(file_of(settings.work, library, first).read_text()):
            results.append(
                {**needs(result), "library": library, "type": name, "name": result["name"].replace(first, name, 1)}
            )
    if settings.families:
        write_families(results)
    for library in dict.fromkeys(library for library, _ in todo):
        mine = [result for result in results if result["library"] == library]
        absent = [each for each in missing if each.startswith(f"{library} ")]
        name = settings.out if library == "transformers" else f"{settings.out}-{library}"
        pages.write(name, page(library, mine, absent), keep=settings.only is None)


def prepare() -> None:
    """Imports, before the processes start, what all of them need, and silences the libraries."""
    warnings.simplefilter("ignore")
    census_models.import_timm()
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        census_of("transformers", "bert", Path(folder))  # imports what is imported when it is first used


if __name__ == "__main__":
    main()
