"""Labels of words, and spans that answer questions: a small encoder with a head at every token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import DataError
from posembed.lab.data import answered as answers
from posembed.lab.data.answered import Asked
from posembed.lab.data.labelled import Examples
from posembed.lab.data.tagged import Sentence, are_iob, entities
from posembed.lab.data.tokenizer import Bytes, Loaded, Pairs, Texts, Windows, encode, joined_ids, read_tokenizer
from posembed.lab.metrics import Measured, by_item
from posembed.lab.model import PositionedModel, token_losses
from posembed.lab.tasks.classification import TEXTS_AT_ONCE, OfTexts, summed
from posembed.lab.tasks.classification_specs import ENTITY_F1, EXACT, F1, LOSS, TOKEN_ACCURACY, SpanSpec, TagSpec
from posembed.lab.tasks.objectives import IGNORED
from posembed.measure.frame import Value


class Tagging(OfTexts[TagSpec]):
    """Labels for the words of sentences. A word's label is predicted at its first token, as in BERT (Devlin et al.
    2019, section 5.3). ``tokenizer``: a name that ``read_tokenizer`` accepts; each word is encoded with a space before
    it."""

    def __init__(self, data: Examples[Sentence], tokenizer: str = "bytes") -> None:
        chosen = read_tokenizer(tokenizer, ("".join(f" {word}" for word in s.words) for s in data.train))
        self.vocabulary = chosen.vocabulary
        self.classes, self.entities = data.labels, are_iob(data.labels)
        words = list(dict.fromkeys(word for s in (*data.train, *data.held_out) for word in s.words))
        tokens = encode(chosen, [f" {word}" for word in words])
        ids = dict(zip(words, np.split(tokens.ids.numpy(), tokens.bounds[1:-1].numpy()), strict=True))
        self.train, self.train_tags = _with_tags(data.train, ids, data.labels)
        self.held_out, self.held_out_tags = _with_tags(data.held_out, ids, data.labels)
        self.train_labels = self.train.lengths()  # ``chosen`` counts them
        self.sentences = data.held_out
        self.describe("tags", data, chosen, self.train.lengths(), "sentence")
        if not self.entities:
            self.description += (
                "\n      the labels are not B-TYPE, I-TYPE and O, so only the token accuracy is measured"
            )

    def draw(self, spec: TagSpec, model: PositionedModel, step: int, rows: slice = slice(None)) -> tuple[Tensor, ...]:
        """Returns token ids (B, L), lengths (B,), labels (B, L) and the weight (B,) of a labelled token."""
        chosen = self.chosen(spec, step)
        ids, lengths = self.train.batch(chosen, spec.train_length)
        labels, _ = self.train_tags.batch(chosen, spec.train_length, padding=IGNORED)
        weight = len(ids) / (labels != IGNORED).sum()  # over the whole batch, not a process's share of it
        return ids[rows], lengths[rows], labels[rows], weight.expand(len(ids))[rows]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        ids, lengths, labels, weights = batch
        return (token_losses(model(ids, lengths), labels).sum(dim=1) * weights).mean()

    @torch.no_grad()
    def measure(self, spec: TagSpec, model: PositionedModel, accelerator: Accelerator) -> Measured:
        order = self.held_out.lengths().argsort(stable=True)  # batches hold similar lengths
        predicted: dict[int, list[str]] = {}
        loss = 0.0
        for some in order.split(TEXTS_AT_ONCE):
            ids, lengths = self.held_out.batch(some, spec.train_length)
            labels, _ = self.held_out_tags.batch(some, spec.train_length, padding=IGNORED)
            logits = model(ids.to(accelerator.device), lengths.to(accelerator.device)).double().cpu()
            loss += token_losses(logits, labels).sum().item()
            for row, found, known in zip(some.tolist(), logits.argmax(dim=-1), labels, strict=True):
                predicted[row] = [self.classes[index] for index in found[known != IGNORED].tolist()]
        given = [predicted[row] for row in range(len(self.sentences))]
        there = [entities(s.tags) if self.entities else set() for s in self.sentences]
        marked = [entities(tags) if self.entities else set() for tags in given]
        tags = [tag for s in self.sentences for tag in s.tags]
        kept = sum(map(len, given))
        pairs = zip(given, self.sentences, strict=True)
        # Words past the training length have no prediction, so they count as wrong.
        right = summed((sum(map(str.__eq__, tags, s.tags)) for tags, s in pairs), self.documents)
        words = summed((len(s.words) for s in self.sentences), self.documents)
        found = summed((2 * len(a & b) for a, b in zip(there, marked, strict=True)), self.documents)
        both = summed((len(a) + len(b) for a, b in zip(there, marked, strict=True)), self.documents)
        number = sum(map(len, there))
        return Measured(
            (
                *(by_item(ENTITY_F1, found, both) if number else ()),
                *by_item(TOKEN_ACCURACY, right, words),
                Value(LOSS.name, loss / kept),
            ),
            sizes={"words": len(tags), "entities": number, "documents": len(words)},
            classes={label: tags.count(label) for label in self.classes},
            unseen=len(tags) - kept,
        )

    def tokens_measured(self, spec: TagSpec) -> int:
        return int(self.held_out.lengths().clamp(max=spec.train_length).sum())


def _with_tags(sentences: Sequence[Sentence], ids: dict[str, np.ndarray], labels: Sequence[str]) -> tuple[Texts, Texts]:
    """Returns the tokens of sentences and, for each token, the index of its label or IGNORED."""
    number = {label: index for index, label in enumerate(labels)}

    def tags_of(sentence: Sentence) -> np.ndarray:
        pairs = zip(sentence.words, sentence.tags, strict=True)
        return np.concatenate([[number[tag], *[IGNORED] * (len(ids[word]) - 1)] for word, tag in pairs])

    tokens = joined_ids(np.concatenate([ids[word] for word in s.words]) for s in sentences)
    return tokens, joined_ids(map(tags_of, sentences))


class Answering(OfTexts[SpanSpec]):
    """Answers as spans of a context: at every token of the context, one logit that the answer starts there, and one
    that it ends there, as in BERT (Devlin et al. 2019, section 4.2). The model reads question, separator, context and
    separator, with segment ids."""

    classes = ("start", "end")
    segments = True

    def __init__(self, data: Examples[Asked], tokenizer: str = "bytes") -> None:
        contexts = dict.fromkeys(asked.context for asked in data.train)
        chosen = read_tokenizer(
            tokenizer, (text for each in (contexts, (a.question for a in data.train)) for text in each)
        )
        self.vocabulary = chosen.vocabulary + 1
        self.train, self.train_labels, _ = _with_answers(chosen, data.train, [a.answers[0] for a in data.train])
        first = [min(a.answers, key=lambda answer: answer[1] + len(answer[0])) for a in data.held_out]
        self.held_out, self.held_out_labels, self.offsets = _with_answers(chosen, data.held_out, first)
        self.asked = data.held_out
        self.known_examples: dict[tuple[int, int | None], Windows] = {}
        self.longest_answer = int(self.train_labels.diff(dim=1).max()) + 1
        self.describe("spans", data, chosen, self.train.lengths(), "question and context")

    def check(self, spec: SpanSpec) -> None:
        for side, pairs, labels in (
            ("training", self.train, self.train_labels),
            ("held-out", self.held_out, self.held_out_labels),
        ):
            windows = pairs.windows(spec.train_length, spec.stride)
            if not answered(pairs, windows, labels, spec).any():
                where = f"is within the first {spec.train_length:,} tokens"
                if spec.stride is not None:
                    where = f"fits into a window of {spec.train_length:,} tokens"
                raise DataError(f"no {side} answer {where}; use a larger --train-length")

    def examples(self, spec: SpanSpec) -> Windows:
        """Returns the windows to train on: windows with the whole answer, and every window of a context that does not
        fit into one window."""
        sizes = spec.train_length, spec.stride
        if sizes not in self.known_examples:  # they take as long as a training step of a small model
            windows = self.train.windows(*sizes)
            wanted = answered(self.train, windows, self.train_labels, spec) | windows.several
            self.known_examples = {sizes: windows[wanted]}
        return self.known_examples[sizes]

    def draw(self, spec: SpanSpec, model: PositionedModel, step: int, rows: slice = slice(None)) -> tuple[Tensor, ...]:
        """Returns token ids (B, L), lengths (B,), segments (B, L), whether a window is one of several (B,), and the
        positions (B, 2) of the answers' first and last tokens. In a window without the answer, both are the position of
        the first separator."""
        examples = self.examples(spec)
        chosen = examples[self.chosen(spec, step, torch.arange(len(examples)))]
        ids, lengths, segments = self.train.batch(chosen.rows, spec.train_length, chosen.starts)
        places = places_of(self.train, chosen, self.train_labels, spec)
        return ids[rows], lengths[rows], segments[rows], chosen.several[rows], places[rows]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        ids, lengths, segments, several, places = batch
        logits = allowed(model(ids, lengths, segments).float(), lengths, segments, several)
        return F.cross_entropy(logits.mT.flatten(0, 1), places.flatten())

    @torch.no_grad()
    def measure(self, spec: SpanSpec, model: PositionedModel, accelerator: Accelerator) -> Measured:
        windows = self.held_out.windows(spec.train_length, spec.stride)
        known = answered(self.held_out, windows, self.held_out_labels, spec)
        left = self.held_out.lengths()[windows.rows] - windows.starts
        order = left.argsort(stable=True)  # batches hold similar lengths
        best, given = torch.full((len(self.asked),), -torch.inf, dtype=torch.float64), [""] * len(self.asked)
        loss = 0.0
        for some in order.split(TEXTS_AT_ONCE):
            read = windows[some]
            ids, lengths, segments = self.held_out.batch(read.rows, spec.train_length, read.starts)
            logits = model(*(tensor.to(accelerator.device) for tensor in (ids, lengths, segments))).double().cpu()
            counted = known[some] | read.several
            places = places_of(self.held_out, read, self.held_out_labels, spec)[counted]
            of_loss = allowed(logits, lengths, segments, read.several)[counted]
            loss += F.cross_entropy(of_loss.mT.flatten(0, 1), places.flatten(), reduction="sum").item()
            scores, spans = best_spans(of_context(logits, lengths, segments), self.longest_answer)
            spans += read.starts.unsqueeze(1) - (segments == 0).sum(dim=1, keepdim=True)
            for row, score, (first, last) in zip(read.rows.tolist(), scores, spans.tolist(), strict=True):
                if score > best[row]:
                    at = self.offsets[row]
                    best[row], given[row] = score, self.asked[row].context[at[first][0] : at[last][1]]
        references = [[text for text, _ in asked.answers] for asked in self.asked]
        seen = torch.zeros(len(self.asked), dtype=torch.bool)
        seen[windows.rows[known]] = True
        f1 = summed(map(answers.f1_score, given, references), self.documents)
        exact = summed(map(int, map(answers.exact_match, given, references)), self.documents)
        questions = summed([1] * len(given), self.documents)
        loss /= 2 * int((known | windows.several).sum())
        return Measured(
            (*by_item(F1, f1, questions), *by_item(EXACT, exact, questions), Value(LOSS.name, loss)),
            sizes={"questions": len(given), "documents": len(questions)},
            unseen=int((~seen).sum()),
        )

    def tokens_measured(self, spec: SpanSpec) -> int:
        windows = self.held_out.windows(spec.train_length, spec.stride)
        first, second = self.held_out.parts(spec.train_length, windows.rows, windows.starts)
        return int((first + second + 2).sum())


def answered(pairs: Pairs, windows: Windows, labels: Tensor, spec: SpanSpec) -> Tensor:
    """Returns whether each window (W,) contains the whole answer. labels: the first and last tokens (N, 2) of the
    answers in their contexts."""
    _, read = pairs.parts(spec.train_length, windows.rows, windows.starts)
    first, last = (labels[windows.rows] - windows.starts.unsqueeze(1)).unbind(dim=1)
    return (first >= 0) & (last < read)


def places_of(pairs: Pairs, windows: Windows, labels: Tensor, spec: SpanSpec) -> Tensor:
    """Returns the positions (W, 2) of the answers' first and last tokens in each window; for both, the position of the
    first separator if the window does not contain the whole answer."""
    separator = pairs.parts(spec.train_length, windows.rows, windows.starts)[0].unsqueeze(1)
    places = labels[windows.rows] - windows.starts.unsqueeze(1) + separator + 1
    return places.where(answered(pairs, windows, labels, spec).unsqueeze(1), separator)


def of_context(logits: Tensor, lengths: Tensor, segments: Tensor) -> Tensor:
    """Returns logits (B, L, 2) with -inf at every token outside the context, where the answer cannot be."""
    last = (lengths - 1).unsqueeze(1)  # the second separator
    outside = (segments == 0) | (torch.arange(segments.size(1), device=segments.device) >= last)
    return logits.masked_fill(outside.unsqueeze(2), -torch.inf)


def allowed(logits: Tensor, lengths: Tensor, segments: Tensor, several: Tensor) -> Tensor:
    """Returns the logits (B, L, 2) of ``of_context``. If a context has ``several`` windows (B,), the first separator
    keeps its logits too: they say that the answer is not in this window. BERT uses its class token for this."""
    first = (segments == 0).sum(dim=1, keepdim=True) - 1
    says_none = several.unsqueeze(1) & (torch.arange(segments.size(1), device=segments.device) == first)
    return logits.where(says_none.unsqueeze(2), of_context(logits, lengths, segments))


def best_spans(logits: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Finds the best span of 1 to ``longest`` tokens in each row of logits (B, L, 2): the highest sum of a start logit
    and an end logit. Returns these sums (B,), and the first and last tokens (B, 2)."""
    starts, ends = logits.unbind(dim=2)
    best = torch.full((len(logits),), -torch.inf, dtype=logits.dtype)
    spans = torch.zeros(len(logits), 2, dtype=torch.int64)
    for more in range(min(longest, logits.size(1))):
        score, first = (starts[:, : starts.size(1) - more] + ends[:, more:]).max(dim=1)
        better = score > best
        best = torch.where(better, score, best)
        spans[better] = torch.stack((first, first + more), dim=1)[better]
    return best, spans


def _with_answers(
    tokenizer: Bytes | Loaded, questions: Sequence[Asked], chosen: Sequence[tuple[str, int]]
) -> tuple[Pairs, Tensor, list[np.ndarray]]:
    """Returns encoded questions and contexts, the first and last token (N, 2) of each chosen answer in its context, and
    the character ranges of each context's tokens."""
    contexts = {context: number for number, context in enumerate(dict.fromkeys(a.context for a in questions))}
    of_contexts = [
        at if len(at) else np.zeros((1, 2), dtype=np.int64)  # the end id alone
        for at in tokenizer.offsets(contexts)
    ]
    offsets = [of_contexts[contexts[a.context]] for a in questions]
    labels = []
    for (text, start), at in zip(chosen, offsets, strict=True):
        end = start + len(text)
        inside = ((at[:, 0] < end) & (at[:, 1] > start)).nonzero()[0]
        if not len(inside):
            raise DataError(f"the tokenizer has no token for the answer {text!r:.60}; use another")
        labels.append((int(inside[0]), int(inside[-1])))
    encoded = encode(tokenizer, list(contexts))
    spread = np.split(encoded.ids.numpy(), encoded.bounds[1:-1].numpy())
    second = joined_ids(spread[contexts[a.context]] for a in questions)
    first = encode(tokenizer, [a.question for a in questions])
    pairs = Pairs(first, second, separator=tokenizer.vocabulary, keep_first=True)
    return pairs, torch.tensor(labels), offsets
