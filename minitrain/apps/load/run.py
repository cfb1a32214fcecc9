"""The sweep of `load`, rate by rate, and its report as a table, a picture and a file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import typer
from tqdm import tqdm

from minitrain.apps.load.offered import Server, offer, served_model, waited_for
from minitrain.apps.load.options import LoadOptions
from minitrain.apps.tables import say, show_table
from minitrain.errors import InputError
from minitrain.inference.load import (
    Lengths,
    Summary,
    Target,
    asks,
    lengths_in,
    lengths_of_trace,
    summary,
)
from minitrain.words import count_text, plural, seconds_text

INTERRUPTED = 130
PERCENTILES = (50, 90, 99)
LATE = 0.05  # seconds; a client later than this measures itself
PANELS = {"first_token": "first token", "between_tokens": "between tokens", "total": "end to end"}
SHORT = {"first_token": "TTFT", "between_tokens": "TBT", "total": "E2E"}
Measured = list[tuple[float, Summary]]  # by rate


def run(options: LoadOptions) -> None:
    """Sweeps and reports; after Ctrl-C, reports the completed rates."""
    server = Server(
        options.url, options.model, options.api_key, not options.may_stop, options.timeout
    )
    measured: Measured = []
    try:
        waited_for(sweep(options, server, lengths(options), measured))
    except KeyboardInterrupt:
        if measured:
            report(options, measured)
        raise typer.Exit(INTERRUPTED) from None
    report(options, measured)


def lengths(options: LoadOptions) -> list[Lengths]:
    if options.trace is not None:
        return lengths_of_trace(options.trace, options.requests, options.scale)
    return lengths_in(options.requests, options.prompt_tokens, options.new_tokens, options.seed)


async def sweep(
    options: LoadOptions, server: Server, lengths: list[Lengths], measured: Measured
) -> None:
    """Appends each rate's figures to `measured`, as soon as they are known."""
    server = replace(server, model=server.model or await served_model(server))
    await try_longest(options, server, lengths)
    target = Target(options.first_token, options.per_token)
    total = len(options.rates) * len(lengths)
    drawn = options.vocabulary, options.seed, options.shared, options.prefixes
    with tqdm(total=total, unit="request", leave=False, disable=None) as bar:  # not into a file
        for rate in options.rates:
            bar.set_description(f"{count_text(rate)}/s")
            results = await offer(server, asks(lengths, rate, *drawn), lambda _: bar.update())
            measured.append((rate, summary(results, target)))


async def try_longest(options: LoadOptions, server: Server, lengths: list[Lengths]) -> None:
    """Sends the longest request before anything is measured, to fail early."""
    longest = max(lengths, key=sum)
    probe = asks([longest], 1.0, options.vocabulary, options.seed + 1, options.shared)
    (result,) = await offer(server, probe)
    if result.failed is not None:
        what = f"a prompt of {longest[0] + options.shared} tokens and {longest[1]} new ones"
        raise InputError(
            f"{server.base} does not serve the longest request, {what}: {result.failed}"
        )


# --- the report ---


def report(options: LoadOptions, measured: Measured) -> None:
    title = (
        f"{options.url}, {plural(options.requests, 'request')} at each rate, seed {options.seed}"
    )
    show_table((cells(rate, one) for rate, one in measured), title)
    say(
        "Medians / 99th percentiles of the time to the first token (TTFT), between two tokens "
        "(TBT) and end to end (E2E). In time: requests whose first token came within "
        f"{seconds_text(options.first_token)}, and whose tokens then took "
        f"{seconds_text(options.per_token)} or less each, in the mean; goodput is their rate.",
        *(line for rate, one in measured for line in faults(rate, one)),
    )
    if options.picture is not None:
        draw(options, measured)
        say(f"drawn in {options.picture}")
    if options.json is not None:
        options.json.write_text(json.dumps(as_plain(options, measured), indent=1) + "\n")
        say(f"{plural(len(measured), 'rate')} written to {options.json}")


def cells(rate: float, one: Summary) -> dict[str, str]:
    waits = {words: getattr(one.latency, name) for name, words in SHORT.items()}
    return {
        "offered": "at once" if rate == math.inf else f"{count_text(rate)}/s",
        "tokens/s": count_text(one.tokens_per_second),
        **{f"{words} (ms)": f"{ms(by[50])} / {ms(by[99])}" for words, by in waits.items()},
        "in time": f"{one.met / one.requests:.0%}",
        "goodput": f"{count_text(one.goodput)}/s",
        "failed": str(sum(one.failed.values())),
    }


def ms(seconds: float) -> str:
    if math.isnan(seconds):
        return "–"
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def faults(rate: float, one: Summary) -> list[str]:
    said = [f"At {rate:g}/s {plural(n, 'request')} failed: {why}" for why, n in one.failed.items()]
    if one.late > LATE:
        said.append(
            f"At {rate:g}/s the client itself was up to {seconds_text(one.late)} late: it shares "
            "the machine, and the latencies of this rate are partly its own."
        )
    return said


def as_plain(options: LoadOptions, measured: Measured) -> dict[str, object]:
    """JSON has no nan or inf: an empty percentile is null, and an unlimited rate is "inf"."""
    hidden = ("api_key", "picture", "json", "rates")
    typed = {name: value for name, value in vars(options).items() if name not in hidden}
    typed["trace"] = None if options.trace is None else str(options.trace)
    return {"asked": typed, "rates": [plain(rate, one) for rate, one in measured]}


def plain(rate: float, one: Summary) -> dict[str, object]:
    waits = {
        f"{name}_seconds": {f"p{p}": None if math.isnan(v) else v for p, v in by.items()}
        for name, by in asdict(one.latency).items()
        if name in PANELS
    }
    return {
        "rate": "inf" if rate == math.inf else rate,
        "requests": one.requests,
        "failed": one.failed,
        "seconds": one.seconds,
        "prompt_tokens": one.prompt_tokens,
        "new_tokens": one.new_tokens,
        "tokens_per_second": one.tokens_per_second,
        **waits,
        "met": one.met,
        "goodput_per_second": one.goodput,
        "late_seconds": one.late,
    }


def draw(options: LoadOptions, measured: Measured) -> None:
    """Tokens per second on x, seconds on y: a line for each percentile, a point for each rate."""
    from matplotlib.ticker import LogLocator, NullFormatter

    from minitrain.lab.drawing.colors import COLORS
    from minitrain.lab.drawing.figures import MARKERS, canvas, finish, label_ends

    with canvas(columns=len(PANELS), width=13.0, height=4.4) as (figure, axes):
        for ax, (name, words) in zip(axes, PANELS.items()):
            ends, xs = [], [one.tokens_per_second for _, one in measured]
            for i, percentile in enumerate(PERCENTILES):
                ys = [getattr(one.latency, name)[percentile] for _, one in measured]
                ax.plot(xs, ys, color=COLORS[i], marker=MARKERS[i])
                ends.append((f"p{percentile}", COLORS[i], xs[-1], ys[-1]))
            for (rate, _), x, y in zip(measured, xs, ys):
                if not math.isnan(y):
                    text = "at once" if rate == math.inf else f"{rate:g}/s"
                    ax.annotate(
                        text, (x, y), xytext=(0, 7), textcoords="offset points", ha="center"
                    )
            finish(ax, "throughput (tokens/s)", "", words, log="y")
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter(lambda value, _: seconds_text(value))
            ax.yaxis.set_minor_formatter(NullFormatter())
            ax.margins(y=0.15)
            label_ends(ax, [end for end in ends if not math.isnan(end[-1])])
        figure.savefig(options.picture)
