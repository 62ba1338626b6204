//! The output of a comparison: the changes of a round, and the findings about the present table.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ipvs_netlink as ipvs;
use serde::Serialize;

use super::ProblemEntry;
use crate::cluster::problem::Problem;
use crate::explain::shadow::{Affected, Comparison, Difference, Finding, Summary};

/// Returns the changes as text: one line for each difference, under the name of its Service, and a line with
/// the numbers.
pub(crate) fn changes(comparison: &Comparison) -> String {
    let lines = comparison.differences.iter().map(|difference| {
        let Difference {
            subject,
            frontends,
            change,
            cause,
        } = difference;
        let at = match frontends.is_empty() {
            true => String::new(),
            false => format!("{}: ", list(frontends)),
        };
        (subject, vec![format!("{at}{change}, because {cause}")])
    });
    grouped(lines) + &summary(comparison)
}

/// Returns the findings as text, under the names of their Services, and a line with their number.
pub(crate) fn findings(comparison: &Comparison) -> String {
    let lines = comparison.findings.iter().map(|finding| {
        let at = match finding.frontends.is_empty() {
            true => "the node".to_owned(),
            false => list(&finding.frontends),
        };
        let sources = |title: &str, all: &[&str]| {
            let all = all.iter();
            all.map(|one| format!("    {title}: {one}"))
                .collect::<Vec<_>>()
        };
        let mut lines = vec![
            format!("{at} [{}]", finding.rule.id),
            format!("    table: {}", finding.found),
            format!("    documentation: {}", finding.rule.demand),
        ];
        lines.extend(sources("source", finding.rule.sources));
        lines.extend(sources("known for kube-proxy", finding.rule.known));
        (&finding.subject, lines)
    });
    let total = comparison.findings.len();
    let services: BTreeSet<_> = comparison.findings.iter().map(|it| &it.subject).collect();
    let last = match total {
        0 => "The table is as the documentation demands.\n".to_owned(),
        _ => format!(
            "{} at {}. Nothing was changed.\n",
            count(total, "finding"),
            count(services.len(), "Service")
        ),
    };
    grouped(lines) + &last
}

/// Returns lines under the name of their subject, with an empty line after each subject.
fn grouped<'a>(lines: impl Iterator<Item = (&'a Affected, Vec<String>)>) -> String {
    let mut text = String::new();
    let mut last = None;
    for (subject, lines) in lines {
        if last != Some(subject) {
            if last.is_some() {
                text.push('\n');
            }
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", title(subject));
            last = Some(subject);
        }
        for line in lines {
            let _ = writeln!(text, "  {line}");
        }
    }
    if last.is_some() {
        text.push('\n');
    }
    text
}

fn title(subject: &Affected) -> String {
    match subject {
        Affected::Service(name) => format!("Service {name}"),
        Affected::NoService => "No Service".to_owned(),
        Affected::Node => "This node".to_owned(),
    }
}

fn list(frontends: &[ipvs::ServiceKey]) -> String {
    let names: Vec<String> = frontends.iter().map(ToString::to_string).collect();
    names.join(", ")
}

fn summary(comparison: &Comparison) -> String {
    let Summary {
        same,
        changed,
        added,
        deleted,
        foreign,
    } = comparison.summary;
    let others = match foreign {
        0 => String::new(),
        _ => format!(
            " {} of other programs left alone.",
            count(foreign, "virtual server")
        ),
    };
    let numbers = format!("{} as planned", count(same, "virtual server"));
    match comparison.has_changes() {
        true => format!(
            "{numbers}, {changed} to change, {added} to add, {deleted} to delete.{others} Nothing was \
             changed.\n"
        ),
        false => format!("{numbers}, nothing to change.{others}\n"),
    }
}

fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

/// The changes as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct JsonChanges {
    changes: Vec<ChangeEntry>,
    summary: Summary,
}

#[derive(Debug, Serialize)]
struct ChangeEntry {
    #[serde(flatten)]
    subject: SubjectEntry,
    frontends: Vec<String>,
    change: String,
    destinations: Vec<String>,
    because: String,
}

impl From<&Comparison> for JsonChanges {
    fn from(comparison: &Comparison) -> Self {
        let changes = comparison.differences.iter();
        Self {
            changes: changes
                .map(|difference| ChangeEntry {
                    subject: (&difference.subject).into(),
                    frontends: names(&difference.frontends),
                    change: difference.change.to_string(),
                    destinations: names(difference.change.destinations()),
                    because: difference.cause.to_string(),
                })
                .collect(),
            summary: comparison.summary,
        }
    }
}

/// The findings as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct JsonFindings {
    findings: Vec<FindingEntry>,
    problems: Vec<ProblemEntry>,
}

#[derive(Debug, Serialize)]
struct FindingEntry {
    #[serde(flatten)]
    subject: SubjectEntry,
    frontends: Vec<String>,
    rule: &'static str,
    table: String,
    documentation: &'static str,
    sources: &'static [&'static str],
    known: &'static [&'static str],
}

impl JsonFindings {
    pub(crate) fn new(comparison: &Comparison, problems: &[Problem]) -> Self {
        let entry = |finding: &Finding| FindingEntry {
            subject: (&finding.subject).into(),
            frontends: names(&finding.frontends),
            rule: finding.rule.id,
            table: finding.found.clone(),
            documentation: finding.rule.demand,
            sources: finding.rule.sources,
            known: finding.rule.known,
        };
        Self {
            findings: comparison.findings.iter().map(entry).collect(),
            problems: problems.iter().map(ProblemEntry::from).collect(),
        }
    }
}

fn names<T: ToString>(all: &[T]) -> Vec<String> {
    all.iter().map(T::to_string).collect()
}

/// A subject as JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "scope", content = "service")]
enum SubjectEntry {
    Service(String),
    NoService,
    Node,
}

impl From<&Affected> for SubjectEntry {
    fn from(subject: &Affected) -> Self {
        match subject {
            Affected::Service(name) => Self::Service(name.to_string()),
            Affected::NoService => Self::NoService,
            Affected::Node => Self::Node,
        }
    }
}
