"""Names that posembed reads with a default: `getattr(x, "name", default)`, `hasattr`, `**kwargs`, a failed import.

A library that renames such a name raises no error, and the default is taken in silence. So every such read stands here
with the reason for it. All other names of other libraries are read plainly: a missing one raises.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.version import Version

import timm_peer

PACKAGE = Path(__file__).parents[1] / "src" / "posembed"

OURS = "posembed's own object or argument"
USERS = "the user's own object, of any class"
DATA = "the name comes from a config or a checkpoint's record, not from our code"
PYTHON = "Python or the operating system, which has it on some systems only"
SOME = "only some classes of this library have it: `exists` names one"


class Reads(NamedTuple):
    """The reads of one file that have one reason. names: as `reads_in` writes them, separated by spaces.

    exists: the classes, modules or functions of other libraries that have the names today, as "path: name name".
    """

    file: str
    names: str
    reason: str
    exists: tuple[str, ...] = ()


READS = (
    Reads("__init__.py", "except:ImportError", "without torch, an unknown name is an AttributeError as in any module"),
    Reads("publish/check.py", "sentence_transformers[own]", DATA),
    Reads("publish/check.py", "model.base_model", SOME, ("transformers.PreTrainedModel: base_model",)),
    Reads("evaluation/runnable.py", "transformers[architecture]", DATA),
    Reads("publish/check.py", "except:ImportError", "a tokenizer may need a package that is not installed here"),
    Reads("arguments.py", "k[call.__name__] vars(builtins)[name]", "a name in our own classes and annotations"),
    Reads("arguments.py", "value.dtype", USERS),
    Reads(
        "checkpoints/buckets.py",
        "holder[call]",
        SOME,
        (
            "transformers.models.t5.modeling_t5.T5Attention: compute_bias",
            "transformers.models.mpnet.modeling_mpnet.MPNetEncoder: compute_position_bias",
        ),
    ),
    Reads("checkpoints/inspect.py", "table[name]", OURS),
    Reads(
        "checkpoints/live.py",
        "model.patch_embed model.patch_embed.img_size model.set_input_size",
        SOME,
        (
            "timm.models.vision_transformer.VisionTransformer: patch_embed set_input_size",
            "timm.layers.patch_embed.PatchEmbed: img_size",
        ),
    ),
    Reads("checkpoints/live.py", "module.config part.config old.__dict__ new.__dict__", USERS),
    Reads("checkpoints/settings.py", "section[name]", USERS),
    Reads("checkpoints/live.py", "slot.record_in_config", OURS),
    Reads("checkpoints/own_modules.py", "config.__dict__ module[name]", USERS),
    Reads("checkpoints/own_modules.py", "owner.before_queries_keys owner.drawn", OURS),
    Reads("checkpoints/responses.py", "part[name]", DATA),
    Reads("checkpoints/responses.py", "part.attribute_map", SOME, ("transformers.GPT2Config: attribute_map",)),
    Reads(
        "checkpoints/sources/hugging_face.py",
        "except:ImportError",
        "a model's file asks for a package that is not installed",
    ),
    Reads("checkpoints/sources/hugging_face.py", "each[name] part[name] transformers[str(named[0])]", DATA),
    Reads(
        "checkpoints/sources/hugging_face.py",
        "config.hidden_size config.mask_ratio config[name]",
        SOME,
        ("transformers.BertConfig: hidden_size num_attention_heads", "transformers.ViTMAEConfig: mask_ratio"),
    ),
    Reads(
        "checkpoints/sources/timm.py",
        "module.pretrained_cfg module._model_args",
        SOME,
        ("timm.models._factory.create_model: _model_args", "timm.models._builder.build_model_with_cfg: pretrained_cfg"),
    ),
    Reads(
        "checkpoints/sources/timm.py",
        "m.window_size model.patch_embed model.stages module[name] "
        "sys.modules[type(model).__module__].checkpoint_filter_fn",
        SOME,
        (
            "timm.models.swin_transformer_v2_cr.SwinTransformerV2Cr: patch_embed stages",
            "timm.models.swin_transformer_v2_cr.SwinTransformerV2CrBlock: window_size",
            "timm.layers.patch_embed.PatchEmbed: img_size",
            "timm.models.vision_transformer: checkpoint_filter_fn",
        ),
    ),
    Reads(
        "checkpoints/proof/copies.py", "models[0].config.num_frames", SOME, ("transformers.VideoMAEConfig: num_frames",)
    ),
    Reads("checkpoints/proof/copies.py", "section[field.path[-1]]", DATA),
    Reads("checkpoints/proof/whole_models.py", "module[field]", SOME, ("transformers.LlavaConfig: image_seq_length",)),
    Reads(
        "checkpoints/proof/inputs.py",
        "config.is_encoder_decoder config.max_2d_position_embeddings config.num_channels config.patch_size "
        "config.posemb_grid_size config.spatial_merge_size config.text_config config.vision_config config[each] "
        "config[f'pos_emb_{side}'] config[name] each[name] model.config.image_token_id model.get_image_features "
        "section.vocab_size section[name]",
        SOME,
        (
            "transformers.BartConfig: is_encoder_decoder",
            "transformers.LayoutLMv2Config: max_2d_position_embeddings",
            "transformers.ViTConfig: image_size patch_size num_channels",
            "transformers.Siglip2VisionConfig: num_patches",
            "transformers.LlavaConfig: text_config vision_config",
            "transformers.Qwen2VLConfig: image_token_id",
            "transformers.models.qwen2_vl.configuration_qwen2_vl.Qwen2VLVisionConfig: spatial_merge_size in_channels "
            "temporal_patch_size",
            "transformers.models.kimi_k25.configuration_kimi_k25.Kimi_K25VisionConfig: pos_emb_height pos_emb_width",
            "transformers.models.inkling2.configuration_inkling2.Inkling2VisionConfig: posemb_grid_size",
            "transformers.CLIPModel: get_image_features",
            "transformers.BertConfig: vocab_size hidden_size",
            "transformers.VideoMAEConfig: num_frames",
            "transformers.Wav2Vec2BertConfig: feature_projection_input_dim",
            "transformers.SegGptConfig: pretrain_image_size",
            "transformers.TvpConfig: max_img_size",
        ),
    ),
    Reads("comparison.py", "self.question.Spec", OURS),
    Reads("evaluation/collection.py", "error.strerror", PYTHON),
    Reads(
        "evaluation/pictures.py",
        "found.image_embeds found.pooler_output model.get_image_features model.pooler",
        SOME,
        (
            "transformers.CLIPModel: get_image_features",
            "transformers.models.clip.modeling_clip.CLIPVisionModelOutput: image_embeds",
            "transformers.modeling_outputs.BaseModelOutputWithPooling: pooler_output",
            "transformers.ViTModel: pooler",
        ),
    ),
    Reads(
        "evaluation/runnable.py",
        "found.config.max_position_embeddings",
        SOME,
        ("transformers.LlamaConfig: max_position_embeddings",),
    ),
    Reads("evaluation/texts.py", "error.filename error.strerror", PYTHON),
    Reads("files.py", "except:AttributeError libc.renameat2 libc.renamex_np", PYTHON),
    Reads("inputs/base.py", "cls.declaration", OURS),
    Reads("inputs/text.py", "kind[name]", OURS),
    # --- integrations
    Reads("integrations/attention.py", "vars(module)['_attn']", OURS),
    Reads("integrations/attention.py", "attention_mask[NAME]", OURS),
    Reads(
        "integrations/attention.py",
        "module.scaling",
        SOME,
        ("transformers.models.bert.modeling_bert.BertSelfAttention: scaling",),
    ),
    Reads("integrations/callback.py", "model.config", USERS),
    Reads("integrations/decoder.py", "self.config[n]", SOME, ("transformers.GPT2Config: attribute_map",)),
    Reads("integrations/decoder.py", "self.config.eos_token_id", SOME, ("transformers.GPT2Config: eos_token_id",)),
    Reads("integrations/forward_pass.py", "module[HEAD_BY_HEAD] module[name]", SOME),
    Reads(
        "integrations/install.py",
        "config.decoder_attention_heads config.num_hidden_layers config.num_attention_heads "
        "model.config.add_cross_attention module.is_causal",
        SOME,
        (
            "transformers.BartConfig: decoder_layers decoder_attention_heads",
            "transformers.BertConfig: num_hidden_layers num_attention_heads add_cross_attention",
            "transformers.models.bert.modeling_bert.BertSelfAttention: is_causal",
        ),
    ),
    Reads("integrations/install.py", "module.config owner.__dict__[name]", OURS),
    Reads(
        "integrations/saved.py",
        "layers[name] tables[name] value[argument] value[f'initial_{argument}']",
        OURS,
    ),
    Reads("integrations/hooks.py", "around.token_type_ids", OURS),
    Reads("integrations/slot.py", "model.config", USERS),
    Reads("integrations/hooks.py", "PreTrainedModel.is_activation_checkpointing", "only later releases have this name"),
    Reads(
        "integrations/trial.py",
        "config.num_channels base.config.pad_token_id",
        SOME,
        ("transformers.ViTConfig: num_channels", "transformers.BertConfig: pad_token_id"),
    ),
    Reads("integrations/trial.py", "module._hf_hook", "only modules that accelerate offloads have it"),
    Reads("nn/positions.py", "module._hf_hook", "only modules that accelerate offloads have it"),
    Reads("integrations/hooks.py", "module._former_parameters", OURS),
    Reads(
        "integrations/timm.py",
        "block.attn blocks[0].num_heads model.positions",
        SOME,
        ("timm.models.vision_transformer.Block: attn", "timm.layers.attention.Attention: num_heads"),
    ),
    Reads("integrations/transformers.py", "config[NAME] transformers[name]", DATA),
    Reads(
        "integrations/transformers.py",
        "kwargs['attn_implementation'] kwargs['config'] kwargs['output_loading_info']",
        "arguments of the user, who may leave them out",
    ),
    # --- lab
    Reads("lab/data/documents.py", "feature.dtype", SOME, ("datasets.Value: dtype",)),
    Reads("lab/data/labelled.py", "table.features.get(label).names", SOME, ("datasets.ClassLabel: names",)),
    Reads(
        "lab/data/tokenizer.py",
        "tokenizer.model[random]",
        SOME,
        ("tokenizers.models.BPE: dropout", "tokenizers.models.Unigram: alpha"),
    ),
    Reads("lab/question.py", "reading.reference", OURS),
    Reads("layers/base.py", "self[name] self.from_state_dict", OURS),
    Reads("modelfiles/raw_files.py", "os.copy_file_range", PYTHON),
    Reads("nn/attention.py", "encoding[name]", OURS),
    Reads("nn/positions.py", "encoding.at_input", USERS),
    Reads("plots/by_length.py", "comparison.summary summary.headline value.is_meta value.ndim", USERS),
    Reads("plots/canvas.py", "ax.flat ax.size", USERS),
    Reads("plots/canvas.py", "how['title']", OURS),
    Reads("plots/charts.py", "how['logarithmic']", OURS),
    Reads("plots/tables.py", "marked.ndim", USERS),
    Reads("report/questions/__init__.py", "reading.reference", OURS),
    Reads("settings.py", "only.__name__", PYTHON),
    Reads("tables/families.py", "layouts['line']", OURS),
    Reads(
        "tables/modules.py",
        "around.padding_idx owner.max_positions owner.num_embeddings owner.num_prefix_tokens owner.offset "
        "owner.padding_idx owner.parametrizations owner.patch_embed owner.patch_embed.grid_size",
        SOME,
        (
            "transformers.models.roberta.modeling_roberta.RobertaEmbeddings: padding_idx",
            "transformers.models.bart.modeling_bart.BartLearnedPositionalEmbedding: offset",
            "torch.nn.Embedding: num_embeddings padding_idx",
            "torch.nn.utils.parametrize.register_parametrization: parametrizations",
            "timm.models.vision_transformer.VisionTransformer: patch_embed num_prefix_tokens",
            "timm.layers.patch_embed.PatchEmbed: grid_size",
        ),
    ),
    Reads("tables/modules.py", "module.layout", OURS),
    Reads("tables/modules.py", "owner[name]", USERS),
    Reads("tables/monitor.py", "self.layer.table self.layer.weight layer.table layer.weight layer.base_layer", USERS),
    Reads("tables/sources.py", "encodings[wanted[0]].layout", OURS),
    Reads("tables/sources.py", "one.config one.config.to_dict type(module)[name]", USERS),
    Reads("torch_internals.py", "method.__code__ kind[name]", PYTHON),
    Reads("tuning/texts.py", "tokenizer.is_fast", SOME, ("transformers.PreTrainedTokenizerFast: is_fast",)),
    Reads(
        "tuning/trainable.py",
        "model[new]",
        "transformers 4 has another name, and a model without both raises",
        ("transformers.PreTrainedModel: gradient_checkpointing_enable supports_gradient_checkpointing",),
    ),
    Reads("tuning/trainable.py", "module.weight", USERS),
)

# Names that are read plainly where a rename would be noticed late, as after hours of training.
PLAIN = (
    "transformers.pytorch_utils: is_torchdynamo_compiling",
    "transformers.PreTrainedModel: base_model_prefix can_generate",
    "transformers.PretrainedConfig: architectures attribute_map model_type to_dict",
    "transformers.LxmertConfig: visual_feat_dim",
    "transformers.models.bark.configuration_bark.BarkFineConfig: n_codes_total",
    "transformers.conversion_mapping: get_model_conversion_mapping",
    "transformers.core_model_loading: WeightConverter WeightRenaming rename_source_key",
    "timm.models._builder.build_model_with_cfg: default_cfg",
)


def named(value: ast.expr, name: ast.expr) -> str:
    """Writes a read as "config.patch_size", or as "config[name]" where the name is no constant."""
    end = f".{name.value}" if isinstance(name, ast.Constant) else f"[{written(name)}]"
    return written(value) + end


def written(node: ast.expr) -> str:
    """Writes an expression without spaces, casts and the defaults inside it."""
    if isinstance(node, ast.Attribute):
        return f"{written(node.value)}.{node.attr}"
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "cast":
        return written(node.args[1])
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) > 2:
        return named(node.args[0], node.args[1])
    return ast.unparse(node).replace(" ", "")


def has_default(call: ast.Call) -> bool:
    """Returns whether this is a call of a dictionary's `get`, or of its `pop` with a default."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name == "get" or (name == "pop" and len(call.args) > 1)


def reads_in(tree: ast.AST) -> Iterator[str]:
    """Yields every read of a name with a default. An `except` that raises is none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.kwarg is not None:
            own = node.args.kwarg.arg
            for call in (each for each in ast.walk(node) if isinstance(each, ast.Call) and has_default(each)):
                if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == own:
                    yield f"{own}[{written(call.args[0])}]"
        elif isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type is not None else ""
            missing = [name for name in ("AttributeError", "ImportError", "ModuleNotFoundError") if name in caught]
            if missing and not any(isinstance(each, ast.Raise) for each in node.body):
                yield f"except:{missing[0]}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) > 2):
                yield named(node.args[0], node.args[1])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and has_default(node):
            held = ast.unparse(node.func.value)
            if held.endswith(".__dict__") or held.startswith("vars("):
                yield f"{written(node.func.value)}[{written(node.args[0])}]"


def test_every_read_with_a_default_is_decided() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    found = {
        (path.relative_to(PACKAGE).as_posix(), name) for path in files for name in reads_in(ast.parse(path.read_text()))
    }
    listed = Counter((row.file, name) for row in READS for name in row.names.split())
    new = sorted(f"{file}: {name}" for file, name in found - set(listed))
    gone = sorted(f"{file}: {name}" for file, name in set(listed) - found)
    assert not new, (
        f"read with a default, and not in READS: {'; '.join(new)}. If another library always has the name, read it "
        "plainly, so that a renamed one raises. If not, add it to READS with the reason, and a class that has it"
    )
    assert not gone, f"no longer read with a default: {'; '.join(gone)}. Delete these names from READS"
    assert max(listed.values()) == 1, f"listed twice: {[key for key, times in listed.items() if times > 1]}"


def test_a_read_with_a_default_is_found() -> None:
    """Each way to write one is recognised, and a plain read is not."""
    source = (
        "def f(**kwargs):\n    kwargs.get('a'); kwargs.pop('b', 0); kwargs.pop('c'); kwargs['d']; other.get('e')\n"
        "getattr(x.y, 'f', None); getattr(x, 'g'); hasattr(x, name); x.__dict__.get('h'); vars(x).pop('i', 0)\n"
        "getattr(getattr(cast(Any, x), 'j', None), 'k', 0)\n"
        "try:\n    import l\nexcept ImportError:\n    l = None\n"
        "try:\n    import m\nexcept ImportError:\n    raise\n"
    )
    wanted = "kwargs['a'] kwargs['b'] x.y.f x[name] x.__dict__['h'] vars(x)['i'] x.j x.j.k except:ImportError"
    assert sorted(reads_in(ast.parse(source))) == sorted(wanted.split())


def is_held(holder: Any, name: str) -> bool:
    """Returns whether a module, a class or a function has a name: an attribute, an argument, or one set in its code."""
    if hasattr(holder, name):
        return True
    if isinstance(holder, type):
        own = [each for each in holder.__mro__ if each is not object]
        codes = [vars(each)["__init__"] for each in own if inspect.isfunction(vars(each).get("__init__"))]
        return any(is_held(code, name) for code in codes) or any(name in inspect.get_annotations(each) for each in own)
    code = inspect.unwrap(holder).__code__ if inspect.isfunction(holder) else None
    return code is not None and (name in inspect.signature(holder).parameters or name in code.co_names)


def found_at(path: str) -> Any:
    """Returns the module, class or function with this dotted path. Raises AttributeError if it is missing."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            held = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
            continue
        for part in parts[end:]:
            held = getattr(held, part)
        return held
    raise AttributeError(path)


SINCE = {"transformers.models.inkling2.": "5.23"}
"""The release from which a library has what it has."""


def is_too_new(path: str) -> bool:
    since = [SINCE[start] for start in SINCE if path.startswith(start)]
    return bool(since) and Version(version(path.partition(".")[0])) < Version(since[0])


def test_the_names_exist_in_the_installed_libraries() -> None:
    """A rename fails here on the day on which the renamed library is installed."""
    timm_peer.vision_transformer()
    pytest.importorskip("transformers")
    missing = []
    for line in [line for row in READS for line in row.exists] + list(PLAIN):
        path, names = line.split(": ")
        if is_too_new(path):
            continue
        library = importlib.import_module(path.partition(".")[0])
        where = f"({library.__name__} {library.__version__})"
        try:
            holder = found_at(path)
        except AttributeError:
            missing.append(f"{path} {where}")
            continue
        missing += [f"{path}.{name} {where}" for name in names.split() if not is_held(holder, name)]
    assert not missing, (
        f"missing: {'; '.join(missing)}. See what replaced it, change the code that reads it, and then this table"
    )


def test_every_name_of_another_library_says_where_it_exists() -> None:
    bare = [row.file for row in READS if row.reason == SOME and not row.exists and "integrations" not in row.file]
    assert not bare, f"{', '.join(bare)}: name a class that has it"
    assert not is_held(found_at("transformers.BertConfig"), "no_such_name")
