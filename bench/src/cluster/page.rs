//! The report as one HTML page.

use super::outcome::Outcome;
use super::results::Report;
use super::scenario::Phase;
use super::summary;
use crate::report::lines::{Axis, Lines, Series};
use crate::report::page::Page;
use crate::report::svg::Kind;

/// Returns the page.
pub(super) fn page(report: &Report) -> String {
    let mut page = Page::new(
        "Service proxies in large clusters",
        "Service proxies in large clusters",
    );
    page.note(&report.machine.describe());
    page.paragraph(
        "All proxies run one after the other on the same lab kernel (User-Mode Linux, one processor), \
         where a system call costs about 70 times more than on a real kernel. Compare the columns, not \
         the absolute times.",
    );
    growth(&mut page, report);
    for scenario in report.scenarios() {
        section(&mut page, report, scenario);
    }
    page.finish()
}

/// Returns a figure of an outcome, if it was measured.
type Figure = fn(&Outcome) -> Option<f64>;

/// Adds the charts over the number of Services, if there are several.
fn growth(page: &mut Page, report: &Report) {
    let mut sizes: Vec<u32> = report
        .outcomes
        .iter()
        .map(|it| it.scenario.shape.services)
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < 2 {
        return;
    }
    page.section("growth", "Cost against the number of Services");
    for sentence in summary::growth(report) {
        page.paragraph(&sentence);
    }
    let charts: [(&str, &str, Figure); 4] = [
        ("First programming", "seconds", |it| {
            Some(it.start?.programmed_secs)
        }),
        ("CPU per change", "milliseconds", |it| {
            let step = it.steps.iter().find(|step| step.phase == Phase::Churn)?;
            Some(step.cost.cpu.all() * 1e3 / f64::from(step.changes.max(1)))
        }),
        ("Latency, 99th percentile", "milliseconds", |it| {
            let step = it.steps.iter().find(|step| step.phase == Phase::Churn)?;
            Some(step.latency.as_ref()?.p99)
        }),
        ("Resident memory after the start", "MB", |it| {
            Some(summary::megabytes(it.start?.cost.memory.resident))
        }),
    ];
    for (title, unit, of) in charts {
        let series = report.subjects().into_iter().map(|subject| {
            let outcomes = report.outcomes.iter().filter(|it| it.subject == subject);
            let mut points: Vec<(f64, f64)> = outcomes
                .filter_map(|it| Some((f64::from(it.scenario.shape.services), of(it)?)))
                .collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            Series {
                name: subject.to_owned(),
                points,
            }
        });
        chart(
            page,
            &Lines {
                title: title.to_owned(),
                across: Axis::new("Services", Kind::Decimal),
                up: Axis::new(unit, Kind::Decimal),
                series: series.collect(),
            },
        );
    }
}

fn section(page: &mut Page, report: &Report, scenario: &str) {
    page.section(scenario, scenario);
    page.note(&summary::conditions(report, scenario));
    page.html(&summary::table(report, scenario).html());
    for note in summary::notes(report, scenario) {
        page.paragraph(&note);
    }
    let series = |of: &dyn Fn(&Outcome) -> Vec<(f64, f64)>| -> Vec<Series> {
        let first = |subject| report.of(scenario, subject).first().map(|it| of(it));
        let subjects = report.subjects().into_iter();
        let series = subjects.map(|subject| Series {
            name: subject.to_owned(),
            points: first(subject).unwrap_or_default(),
        });
        series.collect()
    };
    chart(
        page,
        &Lines {
            title: "Latency from the API to the kernel".to_owned(),
            across: Axis::new("share of the changes, %", Kind::Linear),
            up: Axis::new("milliseconds", Kind::Decimal),
            series: series(&distribution),
        },
    );
    chart(
        page,
        &Lines {
            title: "Resident memory over time".to_owned(),
            across: Axis::new("seconds since the start", Kind::Linear),
            up: Axis::new("MB", Kind::Linear),
            series: series(&|it| {
                let samples = it.memory.iter();
                samples
                    .map(|&(at, kib)| (at, summary::megabytes(kib)))
                    .collect()
            }),
        },
    );
}

/// Returns the latency at each hundredth of the changes.
fn distribution(outcome: &Outcome) -> Vec<(f64, f64)> {
    let churn = outcome.steps.iter().find(|step| step.phase == Phase::Churn);
    let latency = churn.and_then(|step| step.latency.as_ref());
    let values = latency
        .into_iter()
        .flat_map(|latency| &latency.distribution);
    (0_u32..).map(f64::from).zip(values.copied()).collect()
}

fn chart(page: &mut Page, lines: &Lines) {
    let svg = lines.draw();
    if !svg.is_empty() {
        page.heading(&lines.title);
        page.html(&svg);
    }
}
