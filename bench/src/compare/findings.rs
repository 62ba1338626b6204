//! Conclusions from the results in words. All numbers and comparisons are computed from the report.

use serde::Serialize;

use super::results::{Chapter, NEGLIGIBLE_LOSS, Report, Row};
use super::sweep::{NODES, Point, Sweep};
use crate::report::svg::time;

/// The findings ignore smaller relative differences.
const NOTABLE: f64 = 0.05;

/// A question and the answer from the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The scenario; `None` if the answer needs several.
    pub(crate) scenario: Option<String>,
    /// The question.
    pub(crate) question: String,
    pub(crate) answer: String,
}

/// Returns all findings for `report`.
pub(crate) fn from_report(report: &Report) -> Vec<Finding> {
    let mut findings: Vec<Finding> = report
        .sweeps
        .iter()
        .filter_map(counting_with_many_nodes)
        .collect();
    findings.extend(report.scenarios.iter().filter_map(lowest_p99));
    findings.extend(bad_with_many_nodes(report));
    findings.extend(dead_server(report));
    findings.extend(new_servers(report));
    findings.extend(report.scenarios.iter().filter_map(moved_clients));
    findings.extend(report.scenarios.iter().filter_map(losing));
    findings
}

/// Does counting help if every node sees only its own connections?
fn counting_with_many_nodes(sweep: &Sweep) -> Option<Finding> {
    let (plain, counting) = (&sweep.plain, &sweep.counting);
    let by_nodes: Vec<String> = NODES
        .into_iter()
        .filter_map(|nodes| {
            let points = sweep.points.iter().filter(|point| point.nodes == nodes);
            let ratios: Vec<f64> = points.map(Point::ratio).collect();
            let (low, high) = range(&ratios)?;
            let ratios = if high - low < 0.02 {
                format!("{high:.2}")
            } else {
                format!("{low:.2} to {high:.2}")
            };
            let unit = if nodes == 1 { "node" } else { "nodes" };
            Some(format!("{ratios} on {nodes} {unit}"))
        })
        .collect();
    if by_nodes.is_empty() {
        return None;
    }
    let mut answer = format!(
        "With {} servers, the 99th percentile with {counting}, divided by that with {plain}, \
         is {}. ",
        server_span(sweep),
        by_nodes.join(", "),
    );
    answer += &threshold(sweep);
    // The result of one node is the reference, so it is not compared.
    let widest = sweep.points.iter().filter(|point| point.nodes > 1);
    let against: Vec<f64> = widest
        .filter_map(|point| sweep.against_one(point))
        .collect();
    if let Some((_, high)) = range(&against) {
        answer += &format!(
            " Compared with a single {counting} balancer that sees every connection, the 99th \
             percentile of separate nodes is up to {high:.1} times as high."
        );
    }
    Some(Finding {
        scenario: None,
        question: format!(
            "Does {counting} help if every node sees only its own connections? ({})",
            sweep.about
        ),
        answer,
    })
}

/// Above how many connections per node and server does counting help, and where does it harm?
fn threshold(sweep: &Sweep) -> String {
    let counting = &sweep.counting;
    let mut points: Vec<&Point> = sweep.points.iter().collect();
    points.sort_by(|one, other| {
        other
            .connections_per_node_and_server
            .total_cmp(&one.connections_per_node_and_server)
    });
    let helps = |point: &Point| point.is_clear() && point.ratio() < 1.0 - NOTABLE;
    let harms = |point: &Point| point.is_clear() && point.ratio() > 1.0 + NOTABLE;
    // Sorted by connections per node and server. A number is a threshold only if counting helps at
    // every higher number; a single good point below it may be chance.
    let firm = points.iter().take_while(|point| helps(point)).count();
    let (dense, sparse) = points.split_at(firm);
    let notable = percent(NOTABLE);
    let mut text = match dense.last() {
        Some(last) => format!(
            "{counting} helps by more than {notable} if a node has at least {:.2} connections \
             to each server on average",
            last.connections_per_node_and_server
        ),
        None => {
            format!("{counting} does not help by {notable} even with most connections per node")
        }
    };
    if !sparse.is_empty() {
        let helped = sparse.iter().filter(|point| helps(point)).count();
        let harmed = sparse.iter().filter(|point| harms(point)).count();
        text += &format!(
            "; in the {} cases with fewer it helps in {helped} and harms in {harmed}",
            sparse.len()
        );
    }
    text + "."
}

/// Which schedulers have the lowest 99th percentile without losing connections?
fn lowest_p99(chapter: &Chapter) -> Option<Finding> {
    let least_lost = chapter.least_lost();
    let losing_fewest: Vec<&Row> = chapter.losing_fewest().collect();
    let lowest = chapter.lowest_p99();
    if losing_fewest.len() < 2 {
        return None;
    }
    // All schedulers get the same arrivals from the same seed, so a difference of one percent is
    // significant.
    let winners: Vec<&str> = losing_fewest
        .iter()
        .filter(|row| row.latency_ms.p99 <= lowest * 1.01)
        .map(|row| row.scheduler.as_str())
        .collect();
    let mut answer = if winners.len() == losing_fewest.len() {
        format!(
            "The latency is the same with {}: {}.",
            winners.join(", "),
            time(lowest)
        )
    } else {
        format!("{}: {}", winners.join(", "), time(lowest))
    };
    if winners.len() < losing_fewest.len() {
        if let Some(rr) = chapter.row("rr").filter(|_| !winners.contains(&"rr")) {
            let ratio = lowest / rr.latency_ms.p99;
            let loss = if rr.lost_share > least_lost + NEGLIGIBLE_LOSS {
                format!(
                    " (which also loses {} of the connections)",
                    percent(rr.lost_share)
                )
            } else {
                String::new()
            };
            answer += &format!(", {ratio:.2} of rr's{loss}");
        }
        answer.push('.');
    }
    if least_lost > NEGLIGIBLE_LOSS {
        answer += &format!(" Every scheduler loses at least {}.", percent(least_lost));
    }
    Some(Finding {
        scenario: Some(chapter.name.clone()),
        question: "Lowest 99th percentile".to_owned(),
        answer,
    })
}

/// Which schedulers are good with one node and bad with many?
fn bad_with_many_nodes(report: &Report) -> Option<Finding> {
    let one = report.chapter("steady")?;
    let many = report.chapter("many-nodes")?;
    let mut parts = Vec::new();
    for row in &one.rows {
        let Some(with_many) = many.row(&row.scheduler) else {
            continue;
        };
        let ratio = with_many.latency_ms.p99 / row.latency_ms.p99;
        // Only a scheduler that is good with one node needs a warning about many.
        if row.lost_share < 0.01 && (ratio > 2.0 || with_many.lost_share > 0.01) {
            let lost = if with_many.lost_share > NEGLIGIBLE_LOSS {
                format!(
                    " and {} of the connections lost",
                    percent(with_many.lost_share)
                )
            } else {
                String::new()
            };
            parts.push(format!("{} ({ratio:.1} times{lost})", row.scheduler));
        }
    }
    if parts.is_empty() {
        return None;
    }
    Some(Finding {
        scenario: None,
        question: format!(
            "Which schedulers are good with one node and bad with {}?",
            many.nodes
        ),
        answer: format!(
            "Growth of the 99th percentile: {}. Nodes that see few connections each all pick the same \
             servers.",
            parts.join(", ")
        ),
    })
}

/// Does a dead server attract connections?
fn dead_server(report: &Report) -> Option<Finding> {
    let refusing = report.chapter("refusing")?;
    let silent = report.chapter("silent")?;
    let unanswered = |chapter: &Chapter, name: &str| {
        chapter
            .row(name)
            .map(|row| row.unanswered as f64 / row.arrived.max(1) as f64)
    };
    let rr = (unanswered(refusing, "rr")?, unanswered(silent, "rr")?);
    let parts: Vec<String> = ["lc", "wlc", "sed", "nq", "twos"]
        .into_iter()
        .filter_map(|name| {
            let (refused, silent_share) = (unanswered(refusing, name)?, unanswered(silent, name)?);
            Some(format!(
                "{name} {} and {}",
                percent(refused),
                percent(silent_share)
            ))
        })
        .collect();
    if parts.is_empty() {
        return None;
    }
    Some(Finding {
        scenario: None,
        question: "Does a server that is down attract connections until it is removed?".to_owned(),
        answer: format!(
            "Share of connections sent to a server that refuses, and to one that does not answer: rr {} and {}, {}. A refused \
             connection ends at once, so the server looks idle; one without an answer is counted \
             for a minute, so it looks busy.",
            percent(rr.0),
            percent(rr.1),
            parts.join(", ")
        ),
    })
}

/// Do new servers get too many connections?
fn new_servers(report: &Report) -> Option<Finding> {
    let mut parts = Vec::new();
    for name in ["long-lived", "rolling", "many-rolling"] {
        let Some(chapter) = report.chapter(name) else {
            continue;
        };
        let Some(rr) = chapter.row("rr") else {
            continue;
        };
        let ratios: Vec<String> = ["wrr", "lc", "wlc", "sed", "nq", "twos"]
            .into_iter()
            .filter_map(|name| {
                let row = chapter.row(name)?;
                let ratio = row.latency_ms.p99 / rr.latency_ms.p99;
                Some(format!("{name} {ratio:.2}"))
            })
            .collect();
        if !ratios.is_empty() {
            parts.push(format!("in \u{201c}{name}\u{201d} {}", ratios.join(", ")));
        }
    }
    if parts.is_empty() {
        return None;
    }
    Some(Finding {
        scenario: None,
        question: "Do schedulers that count connections overload new servers?".to_owned(),
        answer: format!(
            "99th percentile, divided by that of rr: {}. A new server has no connections, so every node sends all new ones to it until it \
             has as many as the others, and many nodes together overload it; wrr starts again with the \
             newest server on every node.",
            parts.join("; ")
        ),
    })
}

/// Which schedulers send a client to the same server after a change?
fn moved_clients(chapter: &Chapter) -> Option<Finding> {
    let steady: Vec<&Row> = chapter
        .rows
        .iter()
        .filter(|row| row.moved.is_some_and(|share| share < 0.5))
        .collect();
    if chapter
        .rows
        .iter()
        .all(|row| row.moved_after_change.is_none())
        || steady.is_empty()
    {
        return None;
    }
    let parts: Vec<String> = steady
        .iter()
        .filter_map(|row| {
            Some(format!(
                "{} {} ({} without a change)",
                row.scheduler,
                percent(row.moved_after_change?),
                percent(row.moved?)
            ))
        })
        .collect();
    let others: Vec<f64> = chapter
        .rows
        .iter()
        .filter_map(|row| row.moved.filter(|&share| share >= 0.5))
        .collect();
    let rest = match range(&others) {
        Some((low, _)) => format!(
            "; with the others at least {} move, change or not",
            percent(low)
        ),
        None => String::new(),
    };
    Some(Finding {
        scenario: Some(chapter.name.clone()),
        question: "How many clients move after a change that was not to their server?".to_owned(),
        answer: format!("{}{rest}.", parts.join(", ")),
    })
}

/// Which schedulers lose connections that others serve?
fn losing(chapter: &Chapter) -> Option<Finding> {
    let least = chapter.least_lost();
    let mut losing: Vec<&Row> = chapter
        .rows
        .iter()
        .filter(|row| row.lost_share > least + 0.01)
        .collect();
    if losing.is_empty() {
        return None;
    }
    losing.sort_by(|one, other| other.lost_share.total_cmp(&one.lost_share));
    let parts: Vec<String> = losing
        .iter()
        .map(|row| format!("{} {}", row.scheduler, percent(row.lost_share)))
        .collect();
    Some(Finding {
        scenario: Some(chapter.name.clone()),
        question: "Which schedulers lose connections that others serve?".to_owned(),
        answer: format!("{}.", parts.join(", ")),
    })
}

fn server_span(sweep: &Sweep) -> String {
    let counts = sweep.points.iter().map(|point| point.servers);
    let (low, high) = (counts.clone().min(), counts.max());
    format!(
        "{} to {}",
        low.unwrap_or_default(),
        high.unwrap_or_default()
    )
}

fn range(values: &[f64]) -> Option<(f64, f64)> {
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    Some((low, high))
}

/// Formats a share in percent with two or three significant digits.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent != 0.0 && percent < 0.995 {
        format!("{percent:.2} %")
    } else if percent < 9.95 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::sweep::Side;

    fn side(p99_ms: f64) -> Side {
        Side {
            mean_ms: 100.0,
            p99_ms,
            p99_range_ms: [p99_ms * 0.99, p99_ms * 1.01],
            spread: Some(0.5),
            lost_share: 0.0,
        }
    }

    fn sweep(ratios: [f64; 5]) -> Sweep {
        let points = NODES
            .into_iter()
            .zip(ratios)
            .map(|(nodes, ratio)| Point {
                nodes,
                servers: 16,
                connections_per_node_and_server: 8.0 / f64::from(nodes),
                plain: side(100.0),
                counting: side(100.0 * ratio),
            })
            .collect();
        Sweep {
            name: "equal".to_owned(),
            about: "equal servers".to_owned(),
            plain: "rr".to_owned(),
            counting: "lc".to_owned(),
            points,
        }
    }

    #[test]
    fn the_answer_follows_from_the_results() {
        let fades = counting_with_many_nodes(&sweep([0.5, 0.6, 0.99, 1.0, 1.0]))
            .unwrap()
            .answer;
        assert!(fades.contains("0.50 on 1 node, 0.60 on 4 nodes"), "{fades}");
        assert!(fades.contains("at least 2.00 connections"), "{fades}");
        assert!(fades.contains("helps in 0 and harms in 0"), "{fades}");
        assert!(fades.contains("up to 2.0 times"), "{fades}");
        let harms = counting_with_many_nodes(&sweep([1.0, 1.2, 0.5, 1.2, 1.2]))
            .unwrap()
            .answer;
        assert!(harms.contains("lc does not help by 5.0 %"), "{harms}");
        assert!(harms.contains("helps in 1 and harms in 3"), "{harms}");
        let always = counting_with_many_nodes(&sweep([0.5; 5])).unwrap().answer;
        assert!(
            always.contains("at least 0.03 connections to each server on average."),
            "{always}"
        );
    }

    #[test]
    fn shares_have_two_or_three_significant_digits() {
        assert_eq!(percent(0.0), "0.0 %");
        assert_eq!(percent(0.001_23), "0.12 %");
        assert_eq!(percent(0.0456), "4.6 %");
        assert_eq!(percent(0.938), "94 %");
    }
}
