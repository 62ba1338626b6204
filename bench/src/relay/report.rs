//! The report: the medians and how they compare.

use serde::Serialize;

use super::contestant::Contestant;
use super::figures::{Better, Figure};
use crate::figures::short;
use crate::report::plot::{Axis, Kind, Plot, Series};
use crate::report::table::Table;
use crate::report::{Report, Section};

/// All figures of a run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Results {
    pub(super) kernel: String,
    pub(super) processors: usize,
    pub(super) workers: usize,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    pub(super) idle_connections: usize,
    pub(super) versions: Vec<String>,
    pub(super) figures: Vec<Figure>,
}

const CONTESTANTS: [Contestant; 4] = [
    Contestant::Barest,
    Contestant::Haproxy,
    Contestant::Nginx,
    Contestant::Ours,
];

impl Results {
    /// Returns a line for each missed target.
    pub(super) fn missed(&self) -> Vec<String> {
        self.figures.iter().flat_map(Figure::missed).collect()
    }

    pub(super) fn report(&self) -> Report {
        let conditions = format!(
            "Linux {}, {} processors, {} worker(s) on processors of their own where there are enough; \
             {}medians of {} rounds of {} s",
            self.kernel,
            self.processors,
            self.workers,
            self.versions
                .iter()
                .map(|it| format!("{it}; "))
                .collect::<String>(),
            self.rounds,
            self.seconds,
        );
        let ratios =
            "A ratio is that of ours to the other relay, with its lowest and highest round.";
        let mut notes = vec![conditions, ratios.to_owned()];
        let missed = self.missed().into_iter();
        notes.extend(missed.map(|missed| format!("target missed: {missed}")));
        Report {
            title: "The relay and its peers".to_owned(),
            notes,
            sections: vec![Section {
                title: "Figures".to_owned(),
                notes: Vec::new(),
                tables: vec![self.table()],
                plots: vec![self.plot()],
            }],
        }
    }

    fn table(&self) -> Table {
        let relays = CONTESTANTS.map(|it| it.to_string());
        let ratios = ["to the better peer", "to the barest"].map(str::to_owned);
        let head = std::iter::once(String::new()).chain(relays).chain(ratios);
        let mut table = Table::new(head);
        for figure in &self.figures {
            let median = |relay| figure.spread(relay).map(|spread| short(spread.median));
            let ratio = |relay| figure.ratio(relay).map(|it| it.to_string());
            let peer = figure.better_peer();
            let peer = peer.and_then(|peer| Some(format!("{peer} {}", ratio(peer)?)));
            let cells = CONTESTANTS.into_iter().map(median);
            let cells = cells.chain([peer, ratio(Contestant::Barest)]);
            let name = format!("{}, {}", figure.name, figure.unit);
            table.row(std::iter::once(name).chain(cells.map(Option::unwrap_or_default)));
        }
        table
    }

    /// Returns how much better or worse the other relays are than ours.
    fn plot(&self) -> Plot {
        let names = self.figures.iter().map(|it| it.name.to_owned()).collect();
        let series = CONTESTANTS.map(|relay| {
            let worse = |figure: &Figure| {
                let ratio = figure.ratio(relay)?.median;
                Some(match figure.target.better {
                    Better::Less => ratio.recip(),
                    Better::More => ratio,
                })
            };
            let rows = (0_u32..).map(f64::from).zip(&self.figures);
            let points = rows.filter_map(|(row, figure)| Some((worse(figure)?, row)));
            Series::new(&relay.to_string(), points)
        });
        Plot {
            title: "Other relays compared with ours".to_owned(),
            across: Axis::new("1: as ours; above 1: worse than ours", Kind::Binary),
            up: Axis::new("", Kind::Names(names)),
            series: series.to_vec(),
        }
    }
}
