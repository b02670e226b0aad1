"""A gate report as one HTML page that needs nothing else: no network, no script, styles and sounds inside.

Knows what a person asks of a report, in which order. Knows nothing of how figures were measured.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from svtool import __version__
from svtool.errors import AudioError, counted
from svtool.wer.checks import ENOUGH_IN_A_BUCKET, Check, percent
from svtool.wer.elements import Html, element, joined
from svtool.wer.gate import GateReport, SideScore
from svtool.wer.groups import Group, Worst
from svtool.wer.layout import Table
from svtool.wer.plots import Mark, Scale, axis, bars, track
from svtool.wer.score import Chunk, Counts, Tokeniser, align, join_tokens
from svtool.wer.sound import MOST_S, read_sound
from svtool.wer.tables import (
    ROLES,
    conditions_table,
    drift_words,
    figure,
    groups_table,
    provenance_table,
    scores,
    sides_table,
    signals_table,
    sqnr_note,
)
from svtool.wer.words import GLOSSARY, amount, signed, units

_MOST_BARS = 6  # to each side of "no change"; the outermost hold all beyond
_MOST_FAILURES = 50
_MOST_REASONS = 3
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; media-src data:; img-src data:"
_LANGUAGE = re.compile(r"[a-z]{2,3}")

Section = tuple[str, str, Html]  # anchor, heading, content


def page(report: GateReport, *, audio: bool = False) -> str:
    """`audio`: the recordings of the worst utterances are put on the page."""
    sections = [one for one in _sections(report, audio=audio) if one[2]]
    links = (element("a", heading, href=f"#{anchor}") for anchor, heading, _ in sections)
    body = joined(
        element("a", "Skip to the signals", class_="skip", href="#signals"),
        _head(report),
        element("nav", *links, aria_label="Parts of this report"),
        element("main", *(_section(*one) for one in sections)),
        _foot(),
    )
    head = joined(
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{report.verdict.upper()}: {_pair(report)}"),
        element("style", Html(Path(__file__).with_name("page.css").read_text(encoding="utf-8"))),
    )
    whole = element("html", element("head", head), element("body", body), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _sections(report: GateReport, *, audio: bool) -> list[Section]:
    by_column = report.by_column.items()
    return [
        ("signals", "Three signals", _signals(report)),
        ("warnings", "Before you trust it", _list(report.warnings, "warnings")),
        ("sides", "Both sides", _table(sides_table(report))),
        ("language", "Drift by language", _groups("language", report.by_language, report)),
        ("duration", "Drift by duration", _groups("duration", report.by_duration, report)),
        *((f"column-{n}", f"Drift by {of[0]}", _groups(*of, report)) for n, of in enumerate(by_column)),
        ("changes", "Change per utterance", _changes(report)),
        ("worst", "Worst utterances", _worst(report, audio=audio)),
        ("failed", "Failed utterances", _failed(scores(report))),
        ("all-signals", "All signals", _table(signals_table(report))),
        ("conditions", "How it was measured", _table(conditions_table(report))),
        ("provenance", "Provenance", _table(provenance_table(report))),
        ("words", "Words used here", _glossary()),
    ]


def _section(anchor: str, heading: str, content: Html) -> Html:
    title = element("h2", heading, id=f"{anchor}-heading")
    return element("section", title, content, id=anchor, aria_labelledby=f"{anchor}-heading")


def _pair(report: GateReport) -> str:
    return f"{report.candidate.side.name} against {report.baseline.side.name}"


def _head(report: GateReport) -> Html:
    names = joined(
        element("b", report.candidate.side.name),
        element("span", " against "),
        element("b", report.baseline.side.name),
    )
    whole = report.whole
    facts = (
        counted(whole.utterances, "utterance"),
        amount(whole.baseline.reference_tokens, whole.metric),
        *([f"data {report.options.data['list']}"] if "list" in report.options.data else ()),
        f"normaliser {report.normaliser}",
        "engine itself executed" if report.executed else "engine itself not executed",
    )
    return element(
        "header",
        element("p", "svtool validate-wer", class_="kicker"),
        element("h1", element("span", report.verdict.capitalize(), class_="badge"), Html(" "), names),
        _reasons(report.reasons),
        element("p", *(element("span", fact) for fact in facts), class_="facts"),
        class_=report.verdict,
    )


def _reasons(reasons: Sequence[str]) -> Html:
    """All are told, but a page that begins with twelve buckets hides the rest of itself."""
    first, rest = reasons[:_MOST_REASONS], reasons[_MOST_REASONS:]
    if not rest:
        return _list(first, "reasons")
    summary = element("summary", f"{counted(len(rest), 'more reason')}")
    return joined(_list(first, "reasons"), element("details", summary, _list(rest, "reasons")))


def _foot() -> Html:
    now = datetime.now(timezone.utc)
    written = element("time", now.strftime("%Y-%m-%d %H:%M UTC"), datetime=now.isoformat(timespec="seconds"))
    return element("footer", f"svtool {__version__}, ", written)


def _list(lines: Sequence[str], kind: str) -> Html:
    return element("ul", *(element("li", line) for line in lines), class_=kind) if lines else Html()


# --- the three signals -------------------------------------------------------------------------

_STATES = {
    True: ("ok", "meets the limit"),
    False: ("bad", "misses the limit"),
    None: ("open", "not measured"),
}


def _signals(report: GateReport) -> Html:
    cards = (_drift_card(report), _disagreement_card(report), _sqnr_card(report))
    return element("div", *cards, class_="cards")


def _card(name: str, value: str, under: str, state: tuple[str, str], plot: Html, *notes: str) -> Html:
    kind, said = state
    return element(
        "div",
        element("h3", name, Html(" "), element("span", said, class_="state")),
        element("p", element("b", value), element("span", under), class_="value"),
        plot,
        *(element("p", note) for note in notes if note),
        class_=f"card {kind}",
    )


def _drift_card(report: GateReport) -> Html:
    whole, budget = report.whole, report.options.budget
    what = f"{whole.metric} of the candidate minus the baseline's, in points"
    if whole.drift is None or whole.interval is None:
        undefined = "no reference text holds a word"
        return _card("Drift", "n/a", "", ("open", undefined), Html(), what)
    low, high = whole.interval.low, whole.interval.high
    scale = Scale.over((low, high, whole.drift, 0.0, budget))
    marks = (Mark(0.0, "zero"), Mark(budget, "limit"))
    label = f"drift {signed(whole.drift)}, from {signed(low)} to {signed(high)}; budget {budget:g}"
    plot = track(scale, whole.drift, (low, high), marks, label=label)
    chance = f"Chance that the true drift is above the budget: {100 * whole.interval.exceeds:.1f} %"
    under = f"points, {signed(low)} to {signed(high)}"
    ends = axis(scale, _spaced(scale, {budget: f"budget {budget:g}", 0.0: "0"}))
    # a file against itself passes on any amount of data
    state = ("ok", "within the budget") if report.verdict == "pass" else _drift_state(whole, budget)
    return _card("Drift", signed(whole.drift), under, state, joined(plot, ends), chance, what)


def _drift_state(group: Group, budget: float) -> tuple[str, str]:
    if group.interval is None:
        return "open", "no reference text"
    if group.interval.low > budget:
        return "bad", "above the budget"
    if group.interval.high > budget:
        return "open", "straddles the budget"
    # no colour promises what a single error would overturn
    if 100.0 > budget * group.baseline.reference_tokens > 0:
        return "free", "too little data"
    return "ok", "within the budget"


def _spaced(scale: Scale, labels: Mapping[float, str]) -> dict[float, str]:
    """Labels that would lie on one another are left out, the last ones first."""
    kept: dict[float, str] = {}
    for value, label in labels.items():
        if all(abs(scale.at(value) - scale.at(other)) > 20 for other in kept):
            kept[value] = label
    return kept


def _disagreement_card(report: GateReport) -> Html:
    check = _check(report, "disagreement")
    value, limit = report.disagreement, report.options.max_disagreement
    changed = f"{report.differing:,} of {counted(report.whole.utterances, 'text')} differ"
    under = f"of {units(report.whole.metric)}; {changed}"
    where = report.options.disagreement_where
    judged = f"Judged where {where[0]} is {where[1]}: {figure(check.value)} %" if where and check else ""
    shown = check.value if judged and check else value
    return _card(
        "Disagreement",
        "n/a" if value is None else f"{value:.2f} %",
        under,
        _state(check),
        _meter(shown, limit, f"limit {limit:g} %" if limit is not None else "", (0.0, 1.0), "disagreement"),
        judged,
        "The candidate scored against the baseline's texts, whatever the reference says",
    )


def _sqnr_card(report: GateReport) -> Html:
    limit, note = report.options.min_sqnr_db, sqnr_note(report)
    value = None if note else report.sqnr_db
    return _card(
        "SQNR",
        "∞" if report.sqnr_db == math.inf else figure(value, digits=1),
        note or f"dB, over {counted(report.sqnr_frames, 'frame')}",
        _state(_check(report, "sqnr_db")),
        _meter(
            value, limit, f"limit {round(limit, 2):g} dB" if limit is not None else "", (0.0, 60.0), "SQNR"
        ),
        f"The limit is {why}" if (why := report.options.min_sqnr_why) else "",
        "Signal to noise of the raw scores: how far the numbers moved before any word changed",
    )


def _meter(
    value: float | None, limit: float | None, named: str, least: tuple[float, float], label: str
) -> Html:
    if value is None:
        return Html()
    scale = Scale.over((*least, value, *(() if limit is None else (1.25 * limit,))))
    scale = Scale(min(0.0, value), scale.high)
    marks = () if limit is None else (Mark(limit, "limit"),)
    labels = {0.0: "0"} if limit is None else {limit: named, 0.0: "0"}
    said = f"{label} {value:.2f}" + (f"; {named}" if named else "")
    return joined(
        track(scale, value, None, marks, label=said, filled_from=0.0), axis(scale, _spaced(scale, labels))
    )


def _check(report: GateReport, name: str) -> Check | None:
    return next((check for check in report.checks if check.name == name), None)


def _state(check: Check | None) -> tuple[str, str]:
    return _STATES[check.passed] if check else ("free", "no limit set")


# --- groups ------------------------------------------------------------------------------------


def _groups(kind: str, groups: Sequence[Group], report: GateReport) -> Html:
    if not groups:
        return Html()
    budget = report.options.budget
    scale = _common_scale((*report.by_language, *report.by_duration, report.whole), budget)
    failed = {check.name for check in report.checks if check.passed is False}
    rows = [_group_row(group, scale, budget, failed=f"{kind} {group.name}" in failed) for group in groups]
    ticks = {value: f"{value:+g}" if value else "0" for value in scale.ticks()}
    foot = element("div", Html("<span></span>"), axis(scale, ticks), Html("<span></span>"), class_="row foot")
    legend = element(
        "p",
        f"Points of drift with 95 % intervals; dashed: the budget of {budget:g}.",
        " A faded line goes on beyond the plot." if any(_is_cut(group, scale) for group in groups) else "",
        class_="legend",
    )
    figures = element("details", element("summary", "All figures"), _table(groups_table("", groups)))
    return joined(legend, element("div", *rows, foot, class_="forest"), figures)


def _common_scale(groups: Sequence[Group], budget: float) -> Scale:
    """One scale for all groups of a page; a bucket of a handful may not squeeze the others to a point."""
    large = [group for group in groups if group.utterances >= ENOUGH_IN_A_BUCKET] or groups
    bounds = [bound for one in large if one.interval for bound in (one.interval.low, one.interval.high)]
    return Scale.over((0.0, budget, *bounds))


def _is_cut(group: Group, scale: Scale) -> bool:
    return group.interval is not None and not (
        scale.holds(group.interval.low) and scale.holds(group.interval.high)
    )


def _group_row(group: Group, scale: Scale, budget: float, *, failed: bool) -> Html:
    drift, interval = drift_words(group)
    rates = f"{group.metric} {figure(percent(group.baseline))} → {figure(percent(group.candidate))} %"
    under = element("small", f"{counted(group.utterances, 'utterance')}, ", element("span", rates))
    name = element("div", element("b", group.name), under, class_="name")
    value = element("div", element("b", drift), element("small", interval), class_="number")
    marks = (Mark(0.0, "zero"), Mark(budget, "limit"))
    bounds = (group.interval.low, group.interval.high) if group.interval else None
    plot = track(scale, group.drift, bounds, marks, label=f"{group.name}: drift {drift} {interval}".strip())
    state = "bad" if failed else _drift_state(group, budget)[0]
    return element("div", name, plot, value, class_=f"row {state}")


# --- change per utterance ----------------------------------------------------------------------


def _changes(report: GateReport) -> Html:
    changes = report.changes
    better = sum(number for change, number in changes.items() if change < 0)
    worse = sum(number for change, number in changes.items() if change > 0)
    same = changes.get(0, 0)
    said = element(
        "p",
        element("b", f"{same:,}"),
        f" of {counted(sum(changes.values()), 'utterance')} have as many errors as before, ",
        element("b", f"{better:,}", class_="better" if better else None),
        " fewer, ",
        element("b", f"{worse:,}", class_="worse" if worse else None),
        " more.",
    )
    if not better and not worse:
        return said
    legend = element(
        "p",
        "Utterances by errors lost (−) or gained (+); those without a change are left out.",
        class_="legend",
    )
    return joined(said, legend, bars(_bins(changes)))


def _bins(changes: Mapping[int, int]) -> list[tuple[str, int, str]]:
    reach = min(_MOST_BARS, max(map(abs, changes)))
    beyond = max(map(abs, changes)) > reach
    found = []
    for size in (*range(-reach, 0), *range(1, reach + 1)):
        outermost = abs(size) == reach
        number = sum(
            utterances
            for change, utterances in changes.items()
            if change == size or (outermost and change * size > 0 and abs(change) > reach)
        )
        sign = "−" if size < 0 else "+"
        label = f"{sign}{abs(size)}" + (" or more" if outermost and beyond else "")
        found.append((label, number, "better" if size < 0 else "worse"))
    return found


# --- utterances --------------------------------------------------------------------------------


def _worst(report: GateReport, *, audio: bool) -> Html:
    if not report.worst:
        return Html()
    legend = element(
        "p",
        element("del", "missing"),
        " word of the reference, ",
        element("ins", "extra"),
        " word, ",
        element("del", "right"),
        element("ins", "given"),
        " where one stands for the other. Compared is what the normaliser left of the texts.",
        class_="legend",
    )
    return joined(legend, *(_utterance(one, report.tokeniser, audio=audio) for one in report.worst))


def _utterance(one: Worst, tokeniser: Tokeniser, *, audio: bool) -> Html:
    reference = tokeniser(one.normalised[0])
    sides = zip(ROLES, one.normalised[1:], (one.baseline, one.candidate), strict=True)
    length = "" if one.duration_s is None else f", {one.duration_s:.1f} s"
    language = one.language if _LANGUAGE.fullmatch(one.language) else None
    return element(
        "article",
        element("h3", one.id, element("small", f"{one.language}{length}")),
        _player(one) if audio else None,
        element("p", element("b", "reference"), _spoken(one.normalised[0], language), class_="text"),
        element(
            "div",
            *(_side(role, reference, tokeniser(text), counts, language) for role, text, counts in sides),
            class_="pair",
        ),
        _as_given(one, language),
    )


def _side(
    role: str, reference: Sequence[str], given: Sequence[str], counts: Counts, language: str | None
) -> Html:
    errors = element("small", counted(counts.errors, "error"))
    marked = element("span", _marked(align(reference, given)), lang=language, dir="auto")
    return element("p", element("b", role, Html(" "), errors), marked, class_=f"text {role}")


def _marked(chunks: Sequence[Chunk]) -> Html:
    parts: list[Html] = []
    before: tuple[str, ...] = ()
    for chunk in chunks:
        first = chunk.reference or chunk.hypothesis
        parts.append(Html(" " if before and " " in join_tokens((before[-1], first[0])) else ""))
        right, given = join_tokens(chunk.reference), join_tokens(chunk.hypothesis)
        if chunk.kind == "equal":
            parts.append(joined(given))
        else:
            parts += [element("del", right) if right else Html(), element("ins", given) if given else Html()]
        before = chunk.hypothesis or chunk.reference
    return joined(*parts) or _nothing()


def _nothing() -> Html:
    return element("em", "(empty)")


def _spoken(text: str, language: str | None) -> Html:
    return element("span", text or _nothing(), lang=language, dir="auto")


def _as_given(one: Worst, language: str | None) -> Html:
    names = ("reference", *ROLES)
    differing = [
        (name, raw) for name, raw, kept in zip(names, one.raw, one.normalised, strict=True) if raw != kept
    ]
    if not differing:
        return Html()
    texts = (
        element("p", element("b", name), _spoken(raw, language), class_="text") for name, raw in differing
    )
    return element("details", element("summary", "Before the normaliser"), *texts)


def _player(one: Worst) -> Html:
    if one.audio is None:
        return element("p", "No audio is known for this utterance.", class_="legend")
    try:
        sound = read_sound(one.audio)
    except AudioError as error:
        return element("p", f"No audio: {error}", class_="legend")
    source = "data:audio/flac;base64," + base64.b64encode(sound.flac).decode("ascii")
    player = element("audio", src=source, controls=True, preload="metadata", aria_label=f"audio of {one.id}")
    note = f"The first {MOST_S:g} s of {sound.duration_s:.0f} s." if sound.cut else None
    return joined(player, element("p", note, class_="legend") if note else None)


def _failed(sides: Sequence[tuple[str, SideScore]]) -> Html:
    found = [(role, one, error) for role, score in sides for one, error in score.failed]
    if not found:
        return Html()
    shown = [f"{role}, {one}: {error}" for role, one, error in found[:_MOST_FAILURES]]
    more = len(found) - len(shown)
    return _list([*shown, *([f"and {more:,} more: all are in the JSON report"] if more else [])], "failures")


# --- tables and words --------------------------------------------------------------------------


def _table(table: Table) -> Html:
    names = [column.name for column in table.columns]
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in names)))
    rows = []
    for first, *cells in table.rows:
        others = (
            element("td", cell, data_name=name or None, class_=None if column.text else "figure")
            for cell, name, column in zip(cells, names[1:], table.columns[1:], strict=True)
        )
        rows.append(element("tr", element("th", first, scope="row"), *others))
    legend = element("p", table.legend, class_="legend") if table.legend else None
    drawn = element("table", head if any(names) else None, element("tbody", *rows))
    return joined(legend, drawn)


def _glossary() -> Html:
    pairs = ((element("dt", word), element("dd", meaning)) for word, meaning in GLOSSARY)
    return element("dl", *(part for pair in pairs for part in pair))
