//! The answers of our proxy, compared with the observations of clients with kube-proxy.

use std::collections::BTreeSet;

use super::scene::Clients;

#[path = "../conformance/rows.rs"]
mod recorded;

use recorded::{AFFINITY, without_icmp_errors};
pub(crate) use recorded::{Row, rows};

/// Asks all frontends again. Returns how the answers differ from those of `rows`.
pub(crate) fn differences(rows: &[Row], clients: Clients<'_>) -> Vec<String> {
    let gets_none = |row: &&Row| row.expected().contains("timeout");
    let (unanswered, answered): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(gets_none);
    let questions: Vec<_> = unanswered
        .iter()
        .map(|row| (&*row.client, &*row.frontend))
        .collect();
    let answers = clients.ask_at_once(&questions).into_iter();
    let asked_at_once = unanswered.into_iter().zip(answers);
    let asked_in_turn = answered.into_iter().map(|row| (row, row.ask(clients)));
    asked_at_once
        .chain(asked_in_turn)
        .filter_map(|(row, answers)| row.difference(&answers))
        .collect()
}

impl Row {
    fn ask(&self, clients: Clients<'_>) -> BTreeSet<String> {
        let expected = self.expected();
        let times = match expected.len() {
            0 | 1 => 2,
            several => 3 * several,
        };
        clients.ask_for(&self.client, &self.frontend, &expected, times)
    }

    /// Returns how the answers differ, if they do.
    fn difference(&self, answers: &BTreeSet<String>) -> Option<String> {
        let expected = self.expected();
        let is_same = match &*self.frontend {
            AFFINITY => answers.len() == 1 && answers.iter().all(|it| it.starts_with("pod")),
            _ => without_icmp_errors(answers) == without_icmp_errors(&expected),
        };
        (!is_same).then(|| {
            let Self {
                client, frontend, ..
            } = self;
            format!("{client} to {frontend}: {answers:?}, not {expected:?}")
        })
    }
}
