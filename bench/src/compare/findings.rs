//! What follows from the figures, in words. Every number in a sentence comes from the report, and
//! so does every "more" and "less".

use serde::Serialize;

use super::chart::time;
use super::report::{Chapter, HARMLESS, Report, Row};
use super::sweep::{NODES, Point, Sweep};

/// Differences below this share are not worth a word.
const NOTABLE: f64 = 0.05;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// In which scenario; nothing if it takes several to see.
    pub(crate) scenario: Option<String>,
    /// To which question.
    pub(crate) question: String,
    pub(crate) answer: String,
}

/// All answers that the figures of `report` give.
pub(crate) fn of(report: &Report) -> Vec<Finding> {
    let mut findings: Vec<Finding> = report.sweeps.iter().filter_map(alone).collect();
    findings.extend(report.scenarios.iter().filter_map(best));
    findings.extend(herds(report));
    findings.extend(black_hole(report));
    findings.extend(newcomers(report));
    findings.extend(report.scenarios.iter().filter_map(movers));
    findings.extend(report.scenarios.iter().filter_map(losers));
    findings
}

/// Does counting help when every node balances alone?
fn alone(sweep: &Sweep) -> Option<Finding> {
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
        "With {} servers, the 99th percentile with {counting}, in multiples of that with {plain}, \
         is {}. ",
        server_span(sweep),
        by_nodes.join(", "),
    );
    answer += &threshold(sweep);
    let widest = sweep.points.iter().filter(|point| point.nodes > 1);
    let against: Vec<f64> = widest
        .filter_map(|point| sweep.against_one(point))
        .collect();
    if let Some((_, high)) = range(&against) {
        answer += &format!(
            " Compared with one {counting} balancer that sees every connection, the 99th \
             percentile of nodes that balance alone is up to {high:.1} times as high."
        );
    }
    Some(Finding {
        scenario: None,
        question: format!(
            "Does {counting} help when every node balances alone? ({})",
            sweep.about
        ),
        answer,
    })
}

/// From how many connections per node and server on does counting help, and where does it harm?
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
    let firm = points.iter().take_while(|point| helps(point)).count();
    let (dense, sparse) = points.split_at(firm);
    let notable = percent(NOTABLE);
    let mut text = match dense.last() {
        Some(last) => format!(
            "{counting} helps by more than {notable} wherever a node has at least {:.2} connections \
             to a server at a time, on average",
            last.connections_per_node_and_server
        ),
        None => {
            format!("{counting} does not help by {notable} even where a node has most to count")
        }
    };
    if !sparse.is_empty() {
        let helped = sparse.iter().filter(|point| helps(point)).count();
        let harmed = sparse.iter().filter(|point| harms(point)).count();
        text += &format!(
            "; of the {} cases with fewer it helps in {helped} and does harm in {harmed}",
            sparse.len()
        );
    }
    text + "."
}

/// Who has the lowest 99th percentile without losing connections?
fn best(chapter: &Chapter) -> Option<Finding> {
    let least_lost = chapter.least_lost();
    let sound: Vec<&Row> = chapter.sound().collect();
    let lowest = chapter.lowest_p99();
    if sound.len() < 2 {
        return None;
    }
    // Runs of one seed see the same arrivals, so one percent is a difference.
    let winners: Vec<&str> = sound
        .iter()
        .filter(|row| row.latency_ms.p99 <= lowest * 1.01)
        .map(|row| row.scheduler.as_str())
        .collect();
    let mut answer = if winners.len() == sound.len() {
        format!(
            "It makes no difference to latency which of {} chooses: {}.",
            winners.join(", "),
            time(lowest)
        )
    } else {
        format!("{}: {}", winners.join(", "), time(lowest))
    };
    if winners.len() < sound.len() {
        if let Some(rr) = chapter.row("rr").filter(|_| !winners.contains(&"rr")) {
            let ratio = lowest / rr.latency_ms.p99;
            let spoiled = if rr.lost_share > least_lost + HARMLESS {
                format!(
                    ", which loses {} of the connections besides",
                    percent(rr.lost_share)
                )
            } else {
                String::new()
            };
            answer += &format!(", {ratio:.2} of rr's{spoiled}");
        }
        answer.push('.');
    }
    if least_lost > HARMLESS {
        answer += &format!(" Nobody loses less than {}.", percent(least_lost));
    }
    Some(Finding {
        scenario: Some(chapter.name.clone()),
        question: "Lowest 99th percentile".to_owned(),
        answer,
    })
}

/// Who does well alone in front and badly among many?
fn herds(report: &Report) -> Option<Finding> {
    let one = report.chapter("steady")?;
    let many = report.chapter("many-nodes")?;
    let mut parts = Vec::new();
    for row in &one.rows {
        let Some(crowd) = many.row(&row.scheduler) else {
            continue;
        };
        let ratio = crowd.latency_ms.p99 / row.latency_ms.p99;
        if row.lost_share < 0.01 && (ratio > 2.0 || crowd.lost_share > 0.01) {
            let lost = if crowd.lost_share > HARMLESS {
                format!(" and {} of the connections lost", percent(crowd.lost_share))
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
            "Who does well behind one node and badly behind {}?",
            many.nodes
        ),
        answer: format!(
            "By their 99th percentile: {}. Nodes that see few connections each agree on the same \
             servers.",
            parts.join(", ")
        ),
    })
}

/// Does a dead server attract connections?
fn black_hole(report: &Report) -> Option<Finding> {
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
            let (refused, unheard) = (unanswered(refusing, name)?, unanswered(silent, name)?);
            Some(format!(
                "{name} {} and {}",
                percent(refused),
                percent(unheard)
            ))
        })
        .collect();
    if parts.is_empty() {
        return None;
    }
    Some(Finding {
        scenario: None,
        question: "Does a server that is down attract connections until it is unlisted?".to_owned(),
        answer: format!(
            "Sent to a server that refuses, and to one that is silent: rr {} and {}, {}. A refused \
             connection is over at once, so the server looks idle; an unanswered one is counted \
             for a minute, so it looks busy.",
            percent(rr.0),
            percent(rr.1),
            parts.join(", ")
        ),
    })
}

/// Are newcomers flooded?
fn newcomers(report: &Report) -> Option<Finding> {
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
        question: "Are new servers flooded by those who count connections?".to_owned(),
        answer: format!(
            "99th percentile in multiples of rr's: {}. A new server has no connections, so every node sends it all of its own until it \
             has caught up, and with many nodes that is too much at once; wrr starts over at the \
             newest server on every node.",
            parts.join("; ")
        ),
    })
}

/// Who keeps kin together?
fn movers(chapter: &Chapter) -> Option<Finding> {
    let keepers: Vec<&Row> = chapter
        .rows
        .iter()
        .filter(|row| row.parted_undisturbed.is_some_and(|share| share < 0.5))
        .collect();
    if chapter
        .rows
        .iter()
        .all(|row| row.parted_across_change.is_none())
        || keepers.is_empty()
    {
        return None;
    }
    let parts: Vec<String> = keepers
        .iter()
        .filter_map(|row| {
            Some(format!(
                "{} {} ({} without a change)",
                row.scheduler,
                percent(row.parted_across_change?),
                percent(row.parted_undisturbed?)
            ))
        })
        .collect();
    let others: Vec<f64> = chapter
        .rows
        .iter()
        .filter_map(|row| row.parted_undisturbed.filter(|&share| share >= 0.5))
        .collect();
    let rest = match range(&others) {
        Some((low, _)) => format!("; the others move at least {} at any time", percent(low)),
        None => String::new(),
    };
    Some(Finding {
        scenario: Some(chapter.name.clone()),
        question: "Who meets another server after a change that did not concern theirs?".to_owned(),
        answer: format!("{}{rest}.", parts.join(", ")),
    })
}

/// Who loses connections that others serve?
fn losers(chapter: &Chapter) -> Option<Finding> {
    let least = chapter.least_lost();
    let mut losers: Vec<&Row> = chapter
        .rows
        .iter()
        .filter(|row| row.lost_share > least + 0.01)
        .collect();
    if losers.is_empty() {
        return None;
    }
    losers.sort_by(|one, other| other.lost_share.total_cmp(&one.lost_share));
    let parts: Vec<String> = losers
        .iter()
        .map(|row| format!("{} {}", row.scheduler, percent(row.lost_share)))
        .collect();
    Some(Finding {
        scenario: Some(chapter.name.clone()),
        question: "Who loses connections that others serve?".to_owned(),
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

/// A share in words, with as many digits as it deserves.
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
    fn the_answer_follows_the_figures() {
        let fades = alone(&sweep([0.5, 0.6, 0.99, 1.0, 1.0])).unwrap().answer;
        assert!(fades.contains("0.50 on 1 node, 0.60 on 4 nodes"), "{fades}");
        assert!(fades.contains("at least 2.00 connections"), "{fades}");
        assert!(fades.contains("helps in 0 and does harm in 0"), "{fades}");
        assert!(fades.contains("up to 2.0 times"), "{fades}");
        let harms = alone(&sweep([1.0, 1.2, 0.5, 1.2, 1.2])).unwrap().answer;
        assert!(harms.contains("lc does not help by 5.0 %"), "{harms}");
        assert!(harms.contains("helps in 1 and does harm in 3"), "{harms}");
        let always = alone(&sweep([0.5; 5])).unwrap().answer;
        assert!(
            always.contains("at least 0.03 connections to a server at a time, on average."),
            "{always}"
        );
    }

    #[test]
    fn shares_have_as_many_digits_as_they_deserve() {
        assert_eq!(percent(0.0), "0.0 %");
        assert_eq!(percent(0.001_23), "0.12 %");
        assert_eq!(percent(0.0456), "4.6 %");
        assert_eq!(percent(0.938), "94 %");
    }
}
