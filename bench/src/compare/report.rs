//! The report: an overview, a section for each sweep and one for each scenario.

use schedulers::Registry;

use super::results::{Chapter, Results, Row};
use super::scenario::Scenario;
use super::sweep::{NODES, Question, SERVERS, Sweep};
use crate::figures::{short, thousands};
use crate::report::plot::{Axis, Kind, Plot, Series};
use crate::report::table::Table;
use crate::report::{Report, Section};

/// How the figures come about, and what they mean.
const NOTES: [&str; 4] = [
    "A connection arrives at a node, the scheduler chooses a server, and the server works on all its connections \
     at once: each gets a core, or an equal share of the cores if there are more connections than cores. A \
     connection takes one second of one core on average. All schedulers get the same arrivals with the same work.",
    "Each node counts as the kernel does: a connection is active from its SYN to its end, then inactive for 120 s \
     (10 s after a reset; without an answer it stays active for 60 s). Nodes have been in use for two to four \
     minutes when a run starts. The first tenth of a run is not measured.",
    "p99 of runs: of the best and of the worst run. spread: coefficient of variation of the connections per core; \
     0 is even. peak: connections per core of the most loaded server, divided by the mean; 1 is even. busy: \
     servers with a connection. lost: connections that were not served to their end; down: of these, sent to a \
     server that was down. moved: connections sent to another server than the previous one of the same client; \
     changed: the same after a change of the servers that was not to the previous one.",
    "Not simulated: the network, retries, clients that give up, servers that slow down with the number of \
     connections, nodes that learn of changes at different times.",
];

/// Returns the list of scenarios and schedulers.
pub(super) fn names(scenarios: &[Scenario], registry: &Registry) -> String {
    let line = |name: &str, about: &str| format!("  {name:<12} {about}\n");
    let scenarios = scenarios.iter().map(|it| line(it.name, it.about));
    let sweep = "rr against lc, wrr against wlc, by number of nodes and servers";
    format!(
        "scenarios\n{}{}schedulers\n  {}\n",
        scenarios.collect::<String>(),
        line(super::plan::SWEEP, sweep),
        registry.names().collect::<Vec<_>>().join(", ")
    )
}

/// Returns the report.
pub(super) fn report(results: &Results) -> Report {
    let size = format!(
        "A simulation with {} connections: {} runs of about {} each for every scheduler and scenario, seeds from {}; \
         {} s of processor time",
        thousands(results.simulated),
        results.repeats,
        thousands(results.connections),
        results.seed,
        short(results.cpu_secs),
    );
    let notes = NOTES.map(str::to_owned);
    let mut sections = Vec::new();
    if results.scenarios.len() > 1 {
        sections.push(overview(results));
    }
    sections.extend(results.sweeps.iter().map(sweep));
    sections.extend(results.scenarios.iter().map(section));
    Report {
        title: "IPVS schedulers compared".to_owned(),
        notes: std::iter::once(size).chain(notes).collect(),
        sections,
    }
}

/// Returns the 99th percentiles of all schedulers in all scenarios.
fn overview(results: &Results) -> Section {
    let chapters = &results.scenarios;
    let heads = chapters.iter().map(|chapter| chapter.name.as_str());
    let mut table = Table::new(std::iter::once("").chain(heads));
    let rows = chapters.first().map(|chapter| chapter.rows.as_slice());
    for Row { scheduler, .. } in rows.unwrap_or_default() {
        let cells = chapters.iter().map(|chapter| {
            let row = chapter.row(scheduler);
            row.map_or_else(String::new, |row| overview_cell(chapter, row))
        });
        table.row(std::iter::once(scheduler.clone()).chain(cells));
    }
    let note = "The 99th percentile of latency, divided by the lowest in the scenario among the schedulers that \
                lose fewest connections. A scheduler that loses more than 1 % of the connections has that share \
                instead, with a minus.";
    Section {
        title: "Overview".to_owned(),
        notes: vec![note.to_owned()],
        tables: vec![table],
        plots: Vec::new(),
    }
}

fn overview_cell(chapter: &Chapter, row: &Row) -> String {
    // Lost connections have no latency, so a scheduler that loses many would look good.
    if row.lost_share > 0.01 {
        format!("-{}", percent(row.lost_share))
    } else {
        format!("{:.2}", row.latency_ms.p99 / chapter.lowest_p99())
    }
}

fn sweep(sweep: &Sweep) -> Section {
    let Question {
        plain,
        counting,
        about,
        ..
    } = sweep.question;
    let heads = || NODES.into_iter().map(|nodes| format!("{nodes} nodes"));
    let mut ratios = Table::new(std::iter::once("ratio".to_owned()).chain(heads()));
    let mut densities = Table::new(std::iter::once("connections".to_owned()).chain(heads()));
    let mut series = Vec::new();
    for servers in SERVERS {
        let name = format!("{servers} servers");
        let points = NODES.map(|nodes| sweep.point(nodes, servers));
        let ratio_cells = points.map(|point| {
            let point = point?;
            let against_one = sweep.against_one(point)?;
            Some(format!("{:.2} ({against_one:.2})", point.ratio()))
        });
        let density = points.map(|point| Some(short(point?.connections_per_node_and_server)));
        for (table, cells) in [(&mut ratios, ratio_cells), (&mut densities, density)] {
            let cells = cells.into_iter().map(Option::unwrap_or_default);
            table.row(std::iter::once(name.clone()).chain(cells));
        }
        let points = points.into_iter().flatten();
        let points = points.map(|it| (it.connections_per_node_and_server, it.ratio()));
        series.push(Series::new(&name, points));
    }
    let notes = [
        format!(
            "ratio: the 99th percentile of {counting} divided by that of {plain}; below 1, {counting} is better. In \
             brackets: divided by that of {counting} on one node, which counts all connections."
        ),
        "connections: the mean number of connections of a node to a server".to_owned(),
    ];
    Section {
        title: format!("{counting} or {plain}: {about}"),
        notes: notes.to_vec(),
        tables: vec![ratios, densities],
        plots: vec![Plot {
            title: format!("99th percentile of {counting} divided by that of {plain}"),
            across: Axis::new("connections of a node to a server", Kind::Binary),
            up: Axis::new("ratio", Kind::Binary),
            series,
        }],
    }
}

fn section(chapter: &Chapter) -> Section {
    let size = format!(
        "{} servers, {} nodes, load {}, {} simulated seconds a run; changes after {} s",
        chapter.servers,
        chapter.nodes,
        percent(chapter.load),
        short(chapter.seconds),
        chapter
            .events
            .iter()
            .map(|&at| short(at))
            .collect::<Vec<_>>()
            .join(", "),
    );
    Section {
        title: chapter.name.clone(),
        notes: vec![chapter.about.clone(), size],
        tables: vec![figures(chapter)],
        plots: vec![latencies(chapter), peaks(chapter), moved(chapter)],
    }
}

fn figures(chapter: &Chapter) -> Table {
    let mut table = Table::new([
        "",
        "p50 ms",
        "p90",
        "p99",
        "p99.9",
        "p99 of runs",
        "spread",
        "peak",
        "busy",
        "lost",
        "down",
        "moved",
        "changed",
    ]);
    for row in &chapter.rows {
        let latency = row.latency_ms;
        let [best, worst] = row.p99_range_ms.map(short);
        let down = row.fates.unanswered as f64 / row.fates.arrived.max(1) as f64;
        let optional = |value: Option<f64>, format: fn(f64) -> String| {
            value.map_or_else(|| "-".to_owned(), format)
        };
        table.row([
            row.scheduler.clone(),
            short(latency.p50),
            short(latency.p90),
            short(latency.p99),
            short(latency.p999),
            format!("{best} .. {worst}"),
            optional(row.spread, short),
            optional(row.peak, short),
            optional(row.busy, percent),
            percent(row.lost_share),
            percent(down),
            optional(row.moved, percent),
            optional(row.moved_after_change, percent),
        ]);
    }
    table
}

/// Returns a chart with a row for each scheduler and a dot for each of its `values`.
fn dots<const N: usize>(
    chapter: &Chapter,
    title: &str,
    across: Axis,
    names: [&str; N],
    values: fn(&Row) -> [Option<f64>; N],
) -> Plot {
    let series = (0..N).map(|place| {
        let rows = (0_u32..).map(f64::from).zip(&chapter.rows);
        let points = rows.filter_map(|(number, row)| Some((values(row)[place]?, number)));
        Series::new(names[place], points)
    });
    let schedulers = chapter.rows.iter().map(|row| row.scheduler.clone());
    Plot {
        title: title.to_owned(),
        across,
        up: Axis::new("", Kind::Names(schedulers.collect())),
        series: series.collect(),
    }
}

fn latencies(chapter: &Chapter) -> Plot {
    let across = Axis::new("milliseconds from arrival to end", Kind::Decimal);
    let names = ["p50", "p90", "p99", "p99.9"];
    dots(chapter, "Latency", across, names, |row| {
        let latency = row.latency_ms;
        [latency.p50, latency.p90, latency.p99, latency.p999].map(Some)
    })
}

fn moved(chapter: &Chapter) -> Plot {
    let title = "Connections that move to another server";
    let across = Axis::new("% of the connections", Kind::Linear);
    let names = ["without a change", "after a change"];
    dots(chapter, title, across, names, |row| {
        [row.moved, row.moved_after_change].map(|share| Some(100.0 * share?))
    })
}

fn peaks(chapter: &Chapter) -> Plot {
    let series = chapter.rows.iter().map(|row| {
        let step = chapter.seconds / row.peak_curve.len() as f64;
        let points = (0_u32..).map(f64::from).zip(&row.peak_curve);
        let points = points.filter_map(|(number, peak)| Some(((number + 0.5) * step, (*peak)?)));
        Series::new(&row.scheduler, points)
    });
    Plot {
        title: "Load of the most loaded server, divided by the mean".to_owned(),
        across: Axis::new("seconds", Kind::Linear),
        up: Axis::new("peak", Kind::Binary),
        series: series.collect(),
    }
}

fn percent(share: f64) -> String {
    format!("{} %", short(share * 100.0))
}
