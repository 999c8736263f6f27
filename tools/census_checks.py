"""What happens to one model of the census: saved as its library saves it, inspected, resized, loaded again and run."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from census_families import rows_of
from census_models import Model, Path_, import_timm, randomize
from census_runs import TEXT_TOKENS, answer, around, last_frame, last_line, new_inputs
from census_timm import unlike_timm
from torch import Tensor, nn

from posembed import inspect_checkpoint, resize_checkpoint
from posembed.checkpoints.position_tables import pair
from posembed.checkpoints.proof.inputs import inputs_of, text_inputs
from posembed.errors import PosEmbedError

TOLERANCE = 1e-4
WINDOW_MORE = 2  # cells on a side: a window that is larger than its image is never read whole
# What a field of a config counts, by its name, and the options that could change it, the first one first.
OPTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"image_size|img|input_size|resolution|grid|num_position_embeddings|(?<!max_)num_patches$|pos_emb_(height|width)|"
     r"background_size", ("image_size", "grid")),
    (r"frames|pos_emb_time|maskmem", ("frames", "length")),
    (r"window", ("window", "length")),
    (r"mel", ("length",)),
    (r"bucket|bins", ("buckets",)),
    (r"", ("length", "frames", "grid")),
)  # fmt: skip
ANY = ("image_size", "grid", "window", "frames", "length")
OTHER_OPTION = re.compile(
    r"its positions are not|no option|takes 1 to|expected \(height"
)  # a refusal of an option alone
# Fields of numbers that come with an input: the answers to old inputs stay the same.
NUMBERED = re.compile(r"seq_len|max_num_patches|position_embedding_size|max_ep_len|rel_extent|distance|max_pos_emb")
TEXT = re.compile(
    r"position_embeddings$|n_positions|_positions$|block_size|max_text|max_len"
)  # fields of absolute rows
NOT_TEXT = re.compile(r"rel|distance|bias|pe_k|[xyhw]_pos|row_|col(umn)?_|time|temporal")  # other tables of such fields
ACCEPTED = frozenset(signature(resize_checkpoint).parameters)


def options_for(path: Path_) -> tuple[str, ...]:
    return next(options for pattern, options in OPTIONS if re.search(pattern, path[-1]))


def examine(model: Model, folder: Path) -> dict[str, Any]:
    """Returns the results of one model, as plain values for JSON."""
    result: dict[str, Any] = {
        "name": model.name,
        "class": getattr(model.kind, "__name__", model.name),
        "level": model.level,
        "tables": {
            name: {
                "shape": list(model.shapes[name]),
                "sizes": [".".join(path) for path in changes],
                "fixed": name in model.fixed,
            }
            for name, changes in model.tables.items()
        },
        "excluded": model.excluded,
    }
    if not model.tables:
        return result
    torch.manual_seed(0)
    old = model.build().eval()
    randomize(model, old)
    for name in model.fixed & model.tables.keys():
        result["tables"][name]["fixed"] = True
    source = folder / "source"
    save(model, old, source)
    keys = keys_in_files(model, old, source)
    result["keys"] = keys
    baseline = load(model, source)[1]
    listed: dict[str, Any] = {}
    try:
        report = inspect_checkpoint(source)
        listed = {each.table.key: each.to_dict() for each in report.tables}
        result["inspect"] = {key: each["doubt"] for key, each in listed.items()}
        result["why_none"] = report.why_none
    except PosEmbedError as error:
        result["inspect_refused"] = str(error)
    except Exception as error:
        result["inspect_crashed"] = last_frame(error)
    result["calls"] = []
    resized: set[str] = set()
    for path, names in by_size(model):
        if names <= resized:
            continue
        for scale in scales(path):
            call = one_call(model, old, path, names, scale, source, folder / "out", keys, listed, baseline)
            result["calls"].append(call)
            shutil.rmtree(folder / "out", ignore_errors=True)
            resized |= set(call.get("resized", ()))
    result["outcome"] = outcome(model, result["calls"], resized)
    result["rows"] = list(rows_of(source, result["calls"])) if model.library == "transformers" else []
    return result


def outcome(model: Model, calls: list[dict[str, Any]], resized: set[str]) -> str:
    if any(call.get("wrong") for call in calls):
        return "WRONG"
    if any(call["outcome"] == "crashed" for call in calls):
        return "crashed"
    learned = set(model.tables) - model.fixed
    if learned <= resized and resized:
        return "in full"
    return "in part" if learned & resized else "refused"


def by_size(model: Model) -> Iterator[tuple[Path_, set[str]]]:
    """Yields each size with the tables that change with it, the size with the most usual name first; last, the tables
    that no size changes, each with an empty path."""
    order = ("max_position_embeddings", "n_positions", "image_size", "img_size", "max_")
    groups: dict[Path_, set[str]] = {}
    for name, changes in model.tables.items():
        for path in changes:
            groups.setdefault(path, set()).add(name)
    ranks = {path: next((i for i, name in enumerate(order) if name in path[-1]), len(order)) for path in groups}
    yield from sorted(groups.items(), key=lambda item: ranks[item[0]])
    alone = {name for name, changes in model.tables.items() if not changes}
    if alone:
        yield (), alone


def scales(path: Path_) -> tuple[float, ...]:
    return (1.5, 2) if path and options_for(path)[0] == "image_size" else (2,)


def one_call(
    model: Model, old: nn.Module, path: Path_, names: set[str], scale: float, source: Path, out: Path,
    keys: Mapping[str, str], listed: Mapping[str, Any], baseline: Any,
) -> dict[str, Any]:  # fmt: skip
    """Resizes the tables of one size, and judges the result. "wrong" lists what contradicts the claim of success."""
    first = sorted(names, key=lambda name: (name in model.fixed, list(model.tables).index(name)))[0]
    key = keys.get(first, "")
    call: dict[str, Any] = {"size": ".".join(path), "tables": sorted(names), "scale": scale, "wrong": []}
    for options in attempts(model, path, first, scale, listed.get(key)):
        if missing := set(options) - ACCEPTED:
            call.setdefault("outcome", "refused")
            call.setdefault("why", f"no option {', '.join(sorted(missing))}")
            continue
        options |= {"table": key}
        call["options"] = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
        try:
            resize_checkpoint(source, out, **options)
        except PosEmbedError as error:
            call["outcome"] = "refused"
            if OTHER_OPTION.search(call.get("why", "no option")):
                call["why"] = str(error)
        except Exception as error:
            call |= {"outcome": "crashed", "why": last_frame(error)}
        else:
            call |= {"outcome": "resized"}
            try:
                judge(model, old, names, call, out, baseline)
            except Exception as error:
                call["wrong"].append(f"the result cannot be used: {last_frame(error)}")
            return call
    return call


def attempts(model: Model, path: Path_, name: str, scale: float, listed: Any) -> Iterator[dict[str, Any]]:
    """Yields the arguments of resize_checkpoint to try for a size, the most fitting first."""
    shape, layout = model.shapes[name], (listed or {}).get("layout") or {}
    length = (listed or {}).get("length") or (shape[-2] if len(shape) > 1 else shape[0])
    single = [axis["size"] for axis in layout.get("axes") or () if axis["name"] not in ("height", "width", "time")]
    length = single[0] if len(single) == 1 else length
    if path and "axial" in path[-1]:  # Reformer's blocks of positions
        length = math.prod(model.sizes[path])
    if not path:
        yield {"length": 2 * length}
        grid = layout.get("grid")
        side = math.isqrt(length)
        if grid or side * side == length:
            yield {"grid": tuple(int(scale * each) for each in (grid or (side, side)))}
        return
    value, options = model.sizes[path], (*options_for(path), *(each for each in ANY if each not in options_for(path)))
    if any(axis["name"] == "time" for axis in layout.get("axes") or ()) and options[0] == "length":
        options = ("frames", *options)
    for option in options:
        if option == "length":
            yield {"length": 2 * length}
        elif option == "image_size" and (sides := pair(value)) and "size" in path[-1]:
            yield {"image_size": tuple(int(scale * side) for side in sides)}
        elif option == "grid":
            grid = layout.get("grid") or (math.isqrt(length),) * 2
            yield {"grid": tuple(int(scale * side) for side in grid)}
        elif option != "image_size":
            value = value[0] if len(pair(value) or value) > 2 else value  # TinyViT's stages grow by one factor
            more = WINDOW_MORE if option == "window" and type(value) is int else value
            yield {option: value + more if type(value) is int else [2 * each for each in value]}


def judge(model: Model, old: nn.Module, names: set[str], call: dict[str, Any], out: Path, baseline: Any) -> None:
    """Loads a resized checkpoint and compares it with the old model. Adds to ``call``: what is wrong, the tables that
    were resized, what was kept, and which runs were made."""
    wrong = call["wrong"]
    new, problems = load(model, out)
    if problems != baseline:
        wrong.append(f"keys differ from those of the model before: {problems}")
    before, after = dict(old.named_parameters()), dict(new.named_parameters())
    for name in before.keys() ^ after.keys():
        wrong.append(f"{name} is in one of the two models only")
    shared = before.keys() & after.keys()
    call["resized"] = sorted(name for name in shared if before[name].shape != after[name].shape)
    for name in shared - model.tables.keys():
        if before[name].shape != after[name].shape or not torch.equal(before[name], after[name]):
            wrong.append(f"{name} changed, and is no table")
    for name in shared & model.tables.keys() - set(call["resized"]):
        if not torch.equal(before[name], after[name]):
            wrong.append(f"{name} has other values of the same shape")
    if not set(call["resized"]) & names:
        wrong.append("no table has another shape")
    for name in call["resized"]:
        wrong.extend(not_kept(name, before[name].detach(), after[name].detach(), call))
    if model.library == "timm":
        wrong.extend(unlike_timm(old, new, out, call))
    run(model, old, new, call)


def not_kept(name: str, old: Tensor, new: Tensor, call: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a resize should have kept: all rows of a text table, and the rows of no cell in an image's table."""
    axes = [axis for axis, (a, b) in enumerate(zip(old.shape, new.shape, strict=True)) if a != b]
    if axes != [old.dim() - 2] or old.shape[:-2].numel() != 1:
        return
    rows, grown = old.flatten(0, -2), new.flatten(0, -2)
    n, m = len(rows), len(grown)
    if "length" in call["options"]:
        if TEXT.search(call["size"]) and not NOT_TEXT.search(name) and (m < n or not torch.equal(grown[:n], rows)):
            yield f"{name}: the first {n} rows are not the old ones"
    elif "image_size" in call["options"] or "grid" in call["options"]:
        ratio = call["scale"] ** 2
        extra = (ratio * n - m) / (ratio - 1)
        if extra <= 0 or extra % 1 or extra > 8:
            return  # not whole patches, or no rows of special tokens
        e = int(extra)
        if not torch.equal(grown[:e], rows[:e]) and not torch.equal(grown[-e:], rows[-e:]):
            yield f"{name}: its {e} rows of special tokens are not the old ones"


# Running models


def run(model: Model, old: nn.Module, new: nn.Module, call: dict[str, Any]) -> None:
    """Runs the new model once at its new size and, for a text, compares the answers to a short text with the old."""
    call["run"] = []
    text, options = "length" in call["options"], call["options"]
    if model.library == "timm" and "image_size" not in options:
        args, trained = (getattr(new, name) for name in ("_model_args", "pretrained_cfg"))
        options = {"image_size": pair(args.get("img_size")) or trained["input_size"][1:]}
    name = next(iter(call["resized"]), "")
    for path in around(new, name):
        mine, theirs = new.get_submodule(path), old.get_submodule(path)
        try:
            inputs = new_inputs(mine, options)
        except Exception as error:
            call["run"].append(f"{type(mine).__name__}: no inputs: {last_line(error)}")
            continue
        failure = ""
        for arguments in inputs:
            try:
                answers = answer(mine, arguments)
            except Exception as error:
                failure = last_frame(error)
                continue
            finite = all(bool(each.isfinite().all()) for each in answers)
            call["run"].append(f"{type(mine).__name__}: runs at the new size")
            if not finite:
                call["wrong"].append("NaN or infinity in the output at the new size")
            call["runs"] = True
            if text and NUMBERED.search(call["size"]):
                compare_numbered(theirs, mine, call)
            elif text:
                compare_short(theirs, mine, call)
            else:
                inner = name.removeprefix(f"{path}.") if path else name
                compare_interpolated(theirs, mine, inner, arguments, call)
            return
        call["run"].append(f"{type(mine).__name__}: {failure}")
    call["runs"] = False


def compare_short(old: Any, new: Any, call: dict[str, Any]) -> None:
    """A text that the old model takes must get the old answer."""
    if "input_ids" not in signature(new.forward).parameters:
        return
    half = call["options"]["length"] // 2
    for tokens in sorted({min(half, t) for t in TEXT_TOKENS}):
        try:
            inputs = text_inputs(old, tokens)
            pairs = list(zip(answer(old, inputs), answer(new, inputs), strict=False))
        except Exception:
            continue
        differences = [float((a - b).abs().max()) for a, b in pairs if a.shape == b.shape and a.numel()]
        if differences:
            call["short_text"] = max(differences)
            if max(differences) > TOLERANCE:
                call["wrong"].append(f"a text of {tokens} tokens gets another answer (by {max(differences):.2g})")
            return


def compare_numbered(old: Any, new: Any, call: dict[str, Any]) -> None:
    """An input with numbers that the old model takes must get the old answer."""
    for inputs in inputs_of(old):
        with suppress(Exception):
            pairs = list(zip(answer(old, inputs), answer(new, inputs), strict=False))
            call["short_text"] = max(float((a - b).abs().max()) for a, b in pairs if a.shape == b.shape and a.numel())
            if call["short_text"] > TOLERANCE:
                call["wrong"].append(f"an old input gets another answer (by {call['short_text']:.2g})")
            return


def compare_interpolated(old: Any, new: Any, name: str, arguments: Mapping[str, Any], call: dict[str, Any]) -> None:
    """Where the library interpolates the old table itself, its answer is compared. The kernels may differ, but the
    answer must be closer than with the old rows repeated from the first one on."""
    of_images = {"image_size", "grid"} & set(call["options"])
    if not of_images or "interpolate_pos_encoding" not in signature(new.forward).parameters:
        return
    try:
        theirs = answer(old, {**arguments, "interpolate_pos_encoding": True})
        call["own_interpolation"] = apart(theirs, answer(new, arguments))
        table, rows = new.get_parameter(name), old.get_parameter(name)
        kept = table.detach().clone()
        with torch.no_grad():
            repeated = rows.flatten().repeat(1 + table.numel() // rows.numel())[: table.numel()]
            table.copy_(repeated.view_as(table))
            call["repeated_rows"] = apart(theirs, answer(new, arguments))
            table.copy_(kept)
    except Exception as error:
        call["own_interpolation_failed"] = last_line(error)
        return
    if 2 * call["own_interpolation"] > call["repeated_rows"]:
        gap, naive = call["own_interpolation"], call["repeated_rows"]
        call["wrong"].append(f"far from the library's own interpolation: {gap:.2g}, with repeated rows {naive:.2g}")


def apart(theirs: list[Tensor], mine: list[Tensor]) -> float:
    """Returns the largest relative difference of two answers."""
    pairs = [(a, b) for a, b in zip(theirs, mine, strict=False) if a.shape == b.shape and a.numel()]
    return max(float((a - b).norm() / a.norm()) for a, b in pairs)


# Files


def save(model: Model, built: Any, folder: Path) -> None:
    folder.mkdir(parents=True)
    if model.library == "timm":
        import_timm()
        from timm.models import save_for_hf

        save_for_hf(built, folder, model_args=model.config or None, safe_serialization=True)
    else:
        built.save_pretrained(folder)


def load(model: Model, folder: Path) -> tuple[nn.Module, Any]:
    """Returns the model of a folder, and the keys that did not fit."""
    if model.library == "timm":
        timm = import_timm()
        return timm.create_model(f"local-dir:{folder}", pretrained=True).eval(), None
    built, info = model.kind.from_pretrained(str(folder), output_loading_info=True, dtype=torch.float32)
    return built.eval(), {name: sorted(map(str, info.get(name, ()))) for name in
                          ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")}  # fmt: skip


def keys_in_files(model: Model, built: nn.Module, folder: Path) -> dict[str, str]:
    """Returns the key of each table in the files, found by its values."""
    from safetensors import safe_open

    parameters, keys = dict(built.named_parameters()), {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            stored = {key: tensors.get_tensor(key) for key in tensors.keys()}  # noqa: SIM118
        for name in model.tables:
            for key, tensor in stored.items():
                if tensor.shape == parameters[name].shape and torch.equal(tensor, parameters[name]):
                    keys.setdefault(name, key)
    return keys
