//! The way of endpoints' answers to the addresses of clients, back to the relay.
//!
//! ```text
//!  endpoint ─▶ packet rule: a socket of the relay? ─ mark ─▶ routing rule ─▶ local route ─▶ the socket
//! ```
//!
//! Without it, the kernel would forward an answer to the client, which has no connection with this
//! endpoint and resets it.

use std::collections::BTreeSet;

use super::Failure;
use super::ipvs::linux::{AnswerRoute, AnswerRoutes};
use crate::cluster::model::Family;
use crate::dataplane::ipvs::filter::MarkBit;
use nftables::{Chain, Hook, Match, NewMark, Rule, RulesClient, Statement, Table};

/// The table of the packet rule. The table of IPVS' rules has another name: an earlier process that
/// served with IPVS may have left it.
pub const TABLE: &str = "ipvs-proxier-relay";

/// The bit that IPVS' rules set on packets for frontends. No packet of another kind has it.
const MARK: MarkBit = MarkBit::INPUT_ACCEPT;

/// After connection tracking (-200), before the kernel's destination NAT and the choice of the route.
const BEFORE_ROUTING: Hook = Hook::Prerouting(-150);

/// The packet rule and the routes of one network namespace. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub(crate) struct AnswerPath {
    rules: RulesClient,
    routes: AnswerRoutes,
}

/// The objects that a removal found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerPathParts {
    /// Whether the table existed.
    pub(crate) has_table: bool,
    /// The routing rules and routes.
    pub(crate) routes: Vec<AnswerRoute>,
}

impl AnswerPathParts {
    /// Returns what exists, a line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        let table = self.has_table.then(|| format!("table inet {TABLE}"));
        let routes = self.routes.iter().map(ToString::to_string);
        table.into_iter().chain(routes).collect()
    }
}

impl AnswerPath {
    /// Opens the sockets.
    pub(crate) fn open() -> Result<Self, Failure> {
        Ok(Self {
            rules: RulesClient::open(TABLE)?,
            routes: AnswerRoutes::open(MARK.mark())?,
        })
    }

    /// Adds or repairs what connections of these families need.
    pub(crate) fn restore(&mut self, families: &BTreeSet<Family>) -> Result<(), Failure> {
        for &family in families {
            self.routes.add(family)?;
        }
        // The rule comes last: a marked packet without a route would be forwarded.
        self.rules.restore(&table())?;
        Ok(())
    }

    /// Returns what exists.
    pub(crate) fn find(&mut self) -> Result<AnswerPathParts, Failure> {
        Ok(AnswerPathParts {
            has_table: self.rules.exists()?,
            routes: self.routes.find()?,
        })
    }

    /// Removes everything, and returns what existed.
    pub(crate) fn remove(&mut self) -> Result<AnswerPathParts, Failure> {
        // The reverse order of `restore`: no packet is marked once the routes are deleted.
        let has_table = self.rules.exists()?;
        if has_table {
            self.rules.delete()?;
        }
        let routes = self.routes.remove()?;
        Ok(AnswerPathParts { has_table, routes })
    }
}

/// Returns the table with the packet rule.
pub fn table() -> Table {
    let rule = Rule::new([
        Match::TransparentSocket.into(),
        Statement::SetMark(NewMark::With(MARK.mark())),
    ]);
    let mut table = Table::default();
    table.add_chain(Chain::at("answers", BEFORE_ROUTING, [rule]));
    table
}
