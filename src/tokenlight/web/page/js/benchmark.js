// A benchmark directory: table of methods and metrics, curves, agreement (summary.json).

import { chart, chartLegend } from "./curves.js";
import { make } from "./dom.js";
import { decimals } from "./numbers.js";
import { scrollBox } from "./scrolling.js";

const ARROWS = { higher: "↑", lower: "↓" };

/** The whole report: a summary of `evaluate`, or the tables of a benchmark run, one a model and data set. */
export function benchmark(run) {
  const parts = run.manifest?.summary ? [["", run.manifest.summary]] : grouped(run);
  const failures = run.failures?.length ?? 0;
  return make(
    "section",
    { class: "benchmark" },
    make("h2", {}, "Benchmark ", make("b", { text: run.name })),
    run.report
      ? make(
          "p",
          {},
          make("a", { href: run.report, target: "_blank", rel: "noopener", text: "Open the full report" }),
        )
      : null,
    parts.length
      ? make("p", {
          class: "note",
          text:
            "Means over texts with 95 % intervals; the arrow says which way is better, "
            + "the best mean is bold.",
        })
      : make("p", { class: "note", text: "This folder holds no finished scores yet." }),
    failures
      ? make("p", {
          class: "warning",
          text: `${failures} examples failed; failures.csv in the folder lists them.`,
        })
      : null,
    parts.flatMap(([title, summary]) => part(title, summary)),
  );
}

function part(title, summary) {
  const methods = Object.keys(summary.methods);
  return [
    title ? make("h3", { text: title }) : null,
    table(summary.methods, methods),
    ...curves(summary.curves ?? {}, methods),
    agreement(summary.agreement ?? {}),
  ];
}

/** Rows of scores.csv and curves.csv as summaries, in the order the run has them. */
function grouped({ scores = [], curves: lines = [] }) {
  const summaries = new Map();
  const tablesOf = ({ model, data, method }) => {
    const key = [data, model].filter(Boolean).join(" · ");
    if (!summaries.has(key)) summaries.set(key, { methods: {}, curves: {} });
    const summary = summaries.get(key);
    summary.methods[method] ??= {};
    summary.curves[method] ??= {};
    return [summary.methods[method], summary.curves[method]];
  };
  for (const row of scores ?? []) tablesOf(row)[0][row.metric] = row;
  for (const row of lines ?? []) {
    const curve = (tablesOf(row)[1][row.metric] ??= { points: [], means: [] });
    curve.points.push(row.point);
    curve.means.push(row);
  }
  return [...summaries];
}

function table(numbers, methods) {
  const better = Object.assign(
    {},
    ...methods.map((name) =>
      Object.fromEntries(Object.entries(numbers[name]).map(([metric, score]) => [metric, score.better])),
    ),
  );
  const metrics = Object.keys(better);
  const best = Object.fromEntries(
    metrics.map((metric) => {
      const means = methods
        .map((name) => numbers[name][metric]?.mean)
        .filter((mean) => mean !== null && mean !== undefined);
      const choose = { higher: Math.max, lower: Math.min }[better[metric]];
      return [metric, choose && means.length > 1 ? choose(...means) : null];
    }),
  );
  return scrollBox(
    { tabindex: "0", role: "group", "aria-label": "Benchmark table" },
    make(
      "table",
      { class: "numbers" },
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          make("th", { scope: "col", text: "method" }),
          metrics.map((metric) =>
            make("th", { scope: "col", text: `${metric} ${ARROWS[better[metric]] ?? ""}` }),
          ),
        ),
      ),
      make(
        "tbody",
        {},
        methods.map((name) =>
          make(
            "tr",
            {},
            make("th", { scope: "row", text: name }),
            metrics.map((metric) => drawCell(numbers[name][metric], best[metric])),
          ),
        ),
      ),
    ),
  );
}

function drawCell(score, best) {
  if (!score || score.mean === null || !score.count) return make("td", { class: "number", text: "–" });
  const mean = make(score.mean === best ? "b" : "span", { text: decimals(score.mean, 3) });
  return make(
    "td",
    { class: "number" },
    mean,
    make("small", { text: ` [${decimals(score.low, 3)}, ${decimals(score.high, 3)}] · ${score.count}` }),
  );
}

function curves(curvesByMethod, methods) {
  const metrics = [...new Set(methods.flatMap((name) => Object.keys(curvesByMethod[name] ?? {})))];
  return metrics.map((metric) => {
    const series = methods.flatMap((name, line) => {
      const curve = curvesByMethod[name]?.[metric];
      if (!curve) return [];
      const [first, last] = [curve.points[0], curve.points.at(-1)];
      return [
        {
          name,
          line,
          xs: curve.points.map((x) => (x - first) / (last - first || 1)),
          ys: curve.means.map((mean) => mean.mean),
        },
      ];
    });
    const values = series.flatMap((curve) => curve.ys);
    const ends = [Math.min(0, ...values), Math.max(...values, 1e-9)];
    return make(
      "div",
      { class: "curves" },
      make("h3", { text: metric }),
      chart({
        series,
        ends,
        labels: {
          title: `${metric} by share of tokens`,
          x: "share of tokens",
          y: metric,
          format: (value) => value.toPrecision(2),
        },
      }),
      chartLegend(series, null),
    );
  });
}

function agreement(pairs) {
  const entries = Object.entries(pairs);
  if (!entries.length) return null;
  return make(
    "div",
    {},
    make("h3", { text: "Agreement between methods (mean rank correlation)" }),
    make(
      "table",
      { class: "numbers" },
      make(
        "tbody",
        {},
        entries.map(([pair, { mean, low, high }]) =>
          make(
            "tr",
            {},
            make("th", { scope: "row", text: pair }),
            make("td", {
              class: "number",
              text: mean === null ? "–" : `${decimals(mean)} [${decimals(low)}, ${decimals(high)}]`,
            }),
          ),
        ),
      ),
    ),
  );
}
