//! The results as one HTML page without scripts, fonts or links to other hosts.

use std::fmt::Write as _;

use super::chart;
use super::findings::percent;
use super::results::{Chapter, Report, Row};
use super::sweep::{NODES, SERVERS, Sweep};
use crate::report::page::{Page, thousands};
use crate::report::svg::{escaped, time};

/// Returns the HTML page of `report`.
pub(crate) fn page(report: &Report) -> String {
    let mut page = Page::new("Schedulers compared", "IPVS schedulers compared");
    page.html(&body(report));
    page.finish()
}

fn body(report: &Report) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        page,
        "<p class=\"soft\">A simulation with {} connections: {} runs of about {} each for every \
         scheduler and scenario, seeds {} to {}; {:.0} connections per millisecond of processor \
         time.</p>",
        thousands(report.simulated),
        report.repeats,
        thousands(report.connections),
        report.seed,
        report.seed.wrapping_add(u64::from(report.repeats) - 1),
        report.pace(),
    );
    if !report.is_complete() {
        let _ = writeln!(
            page,
            "<p class=\"lost\">Interrupted: only {} of {} cells are complete and shown.</p>",
            report.cells_done, report.cells
        );
    }
    contents(&mut page, report);
    general(&mut page, report);
    if report.scenarios.len() > 1 {
        overview(&mut page, report);
    }
    if !report.sweeps.is_empty() {
        sweeps(&mut page, report);
    }
    for chapter in &report.scenarios {
        scenario(&mut page, report, chapter);
    }
    page.push_str(METHOD);
    page
}

fn contents(page: &mut String, report: &Report) {
    page.push_str("<nav>");
    if report.scenarios.len() > 1 {
        page.push_str("<a href=\"#overview\">overview</a> ");
    }
    if !report.sweeps.is_empty() {
        page.push_str("<a href=\"#alone\">many nodes</a> ");
    }
    for chapter in &report.scenarios {
        let name = escaped(&chapter.name);
        let _ = write!(page, "<a href=\"#{name}\">{name}</a> ");
    }
    page.push_str("<a href=\"#method\">method</a></nav>\n");
}

/// Adds the findings that need several scenarios.
fn general(page: &mut String, report: &Report) {
    let text = answers(report, None);
    if !text.is_empty() {
        let _ = writeln!(page, "<section class=\"general\"><dl>{text}</dl></section>");
    }
}

fn answers(report: &Report, scenario: Option<&str>) -> String {
    report
        .findings
        .iter()
        .filter(|finding| finding.scenario.as_deref() == scenario)
        .map(|finding| {
            format!(
                "<dt>{}</dt><dd>{}</dd>\n",
                escaped(&finding.question),
                escaped(&finding.answer)
            )
        })
        .collect()
}

/// Adds the 99th percentiles of all schedulers in all scenarios, divided by the lowest.
fn overview(page: &mut String, report: &Report) {
    page.push_str(
        "<h2 id=\"overview\">Overview</h2>\n<p>The 99th percentile of latency, divided by the \
         lowest in the scenario among the schedulers that lose fewest connections. A scheduler that loses more than 1 % \
         of the connections has that share instead, with a minus.</p>\n\
         <div class=\"wide\"><table class=\"overview\"><tr><th></th>",
    );
    for chapter in &report.scenarios {
        let _ = write!(page, "<th>{}</th>", escaped(&chapter.name));
    }
    page.push_str("</tr>\n");
    let mut names: Vec<&str> = Vec::new();
    for row in report.scenarios.iter().flat_map(|chapter| &chapter.rows) {
        if !names.contains(&row.scheduler.as_str()) {
            names.push(&row.scheduler);
        }
    }
    for name in names {
        let _ = write!(page, "<tr><td>{}</td>", escaped(name));
        for chapter in &report.scenarios {
            match chapter.row(name) {
                Some(row) => page.push_str(&overview_cell(chapter, row)),
                None => page.push_str("<td></td>"),
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

fn overview_cell(chapter: &Chapter, row: &Row) -> String {
    // Lost connections have no latency, so a scheduler that loses many would look good.
    if row.lost_share > 0.01 {
        return format!(
            "<td class=\"bad3\">\u{2212}{}</td>",
            percent(row.lost_share)
        );
    }
    let ratio = row.latency_ms.p99 / chapter.lowest_p99();
    let class = match ratio {
        ..1.02 => "good2",
        1.02..1.15 => "good1",
        1.15..1.5 => "",
        1.5..2.5 => "bad1",
        _ => "bad2",
    };
    format!("<td class=\"{class}\">{ratio:.2}</td>")
}

fn sweeps(page: &mut String, report: &Report) {
    page.push_str(
        "<h2 id=\"alone\">Does counting help with many nodes?</h2>\n\
         <p>A node counts only its own connections. A single node sees \
         all of them; with more nodes each sees fewer, while servers, arrivals and work stay the \
         same. The table has the 99th percentile of the counting scheduler, divided by that of the other one; below 1 counting helps. In brackets: divided by that of the counting scheduler on one node.</p>\n",
    );
    for sweep in &report.sweeps {
        let _ = writeln!(
            page,
            "<h3>{} against {}: {}</h3>\n{}",
            escaped(&sweep.counting),
            escaped(&sweep.plain),
            escaped(&sweep.about),
            chart::ratios::draw(sweep)
        );
        sweep_table(page, sweep);
    }
}

fn sweep_table(page: &mut String, sweep: &Sweep) {
    page.push_str("<div class=\"wide\"><table><tr><th></th>");
    for nodes in NODES {
        let unit = if nodes == 1 { "node" } else { "nodes" };
        let _ = write!(page, "<th>{nodes} {unit}</th>");
    }
    page.push_str("</tr>\n");
    for servers in SERVERS {
        let _ = write!(page, "<tr><td>{servers} servers</td>");
        for nodes in NODES {
            let Some(point) = sweep.point(nodes, servers) else {
                page.push_str("<td></td>");
                continue;
            };
            let class = match point.ratio() {
                ..0.8 => "good2",
                0.8..0.95 => "good1",
                0.95..=1.05 => "",
                1.05..=1.5 => "bad1",
                _ => "bad2",
            };
            let against_one = sweep.against_one(point).unwrap_or(f64::NAN);
            let _ = write!(
                page,
                "<td class=\"{class}\" title=\"{}: {}, {}: {}; {:.2} connections per node and server\">\
                 {:.2} ({against_one:.2})</td>",
                escaped(&sweep.plain),
                time(point.plain.p99_ms),
                escaped(&sweep.counting),
                time(point.counting.p99_ms),
                point.connections_per_node_and_server,
                point.ratio(),
            );
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

fn scenario(page: &mut String, report: &Report, chapter: &Chapter) {
    let name = escaped(&chapter.name);
    let nodes = if chapter.nodes == 1 { "node" } else { "nodes" };
    let _ = writeln!(
        page,
        "<h2 id=\"{name}\">{name}</h2>\n<p>{}.</p>\n<p class=\"soft\">{} servers, {} {nodes}, load \
         {:.0} %, {} simulated seconds a run.</p>\n<dl class=\"notes\">{}</dl>",
        escaped(&chapter.about),
        chapter.servers,
        chapter.nodes,
        chapter.load * 100.0,
        thousands(chapter.seconds),
        answers(report, Some(&chapter.name)),
    );
    let _ = writeln!(
        page,
        "<h3>Latency percentiles</h3>\n{}",
        chart::percentiles::draw(chapter)
    );
    let _ = writeln!(
        page,
        "<h3>Imbalance over time</h3>\n<p class=\"soft\">Connections per core of the most loaded \
         server, divided by the mean of all servers; 1 is even. Grey: rr. Red marks: changes.</p>\n{}",
        chart::curves::draw(chapter)
    );
    if let Some(bars) = chart::bars::draw(chapter) {
        let _ = writeln!(
            page,
            "<h3>Connections that move to another server</h3>\n{bars}"
        );
    }
    figures(page, chapter);
}

fn figures(page: &mut String, chapter: &Chapter) {
    page.push_str(
        "<h3>Figures</h3>\n<div class=\"wide\"><table><tr><th></th><th>p50</th><th>p90</th><th>p99</th>\
         <th>p99 of runs</th><th>p99.9</th><th>spread</th><th>peak</th><th>busy</th><th>lost</th>\
         <th>moved</th><th>moved after<br>a change</th></tr>\n",
    );
    for row in &chapter.rows {
        let latency = row.latency_ms;
        let lost = if row.lost_share > 0.01 {
            " class=\"lost\""
        } else {
            ""
        };
        let number = |value: Option<f64>| value.map(|value| format!("{value:.2}"));
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{} \u{2013} {}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td><td{lost}>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&row.scheduler),
            time(latency.p50),
            time(latency.p90),
            time(latency.p99),
            time(row.p99_range_ms[0]),
            time(row.p99_range_ms[1]),
            time(latency.p999),
            number(row.spread).unwrap_or_default(),
            number(row.peak).unwrap_or_default(),
            row.busy.map(percent).unwrap_or_default(),
            percent(row.lost_share),
            row.moved.map(percent).unwrap_or_default(),
            row.moved_after_change.map(percent).unwrap_or_default(),
        );
    }
    page.push_str("</table></div>\n");
}

const METHOD: &str = "<h2 id=\"method\">Method</h2>
<p>A discrete-event simulation. A connection arrives at a node, the scheduler under test chooses a
server, the server works on the connection until its work is done. A server works on all its connections
at once: each gets a core, or an equal share of the cores if there are more connections than cores.
Scenarios say where they differ. All schedulers get the same arrivals with the same work.</p>
<p>Each node has its own balancer and counts as the kernel does: a connection is active from its SYN to
its end, then inactive for 120 s (10 s after a reset; without an answer it stays active for 60 s). Nodes
have been in use for two to four minutes when a run starts. The first tenth of a run is not measured.</p>
<dl>
<dt>spread</dt><dd>Coefficient of variation of the connections per core, over the servers that may get
connections, averaged over time. 0: all equal.</dd>
<dt>peak</dt><dd>Connections per core of the most loaded server, divided by the mean, averaged over time.
1: all equal.</dd>
<dt>busy</dt><dd>The share of servers with at least one connection, averaged over time.</dd>
<dt>lost</dt><dd>Connections that were not served to their end: the scheduler picked no server, or the
server had too many connections, was down, or went down.</dd>
<dt>moved</dt><dd>The share of connections sent to another server than the previous connection of the same
client (in \u{201c}caches\u{201d}: to the same address). First without a change of the servers between the
two, then with a change that was not to the previous server.</dd>
<dt>p99 of runs</dt><dd>The 99th percentile of the best and of the worst run: the difference is chance.</dd>
</dl>
<p>Not simulated: the network, retries, clients that give up when the service is slow, servers that slow down
with the number of connections, nodes that learn of changes at different times.</p>
";
