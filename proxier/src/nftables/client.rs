//! The kernel's side of a table.

use ipvs_netlink::attr::find;
use ipvs_netlink::transport::{RequestError, Transport, protocols};
use ipvs_netlink::{Error, Refusal};
use rustix::io::Errno;

use super::change::Change;
use super::existing;
use super::message::{Base, Grouping, Transaction, contents, message_type, transaction};
use super::sys::*;
use super::table::Table;

/// How often a transaction is tried again that somebody else's came before.
const TRIES: u32 = 32;

/// How often a table is read that somebody else changes at the same time, before it is made anew.
const READS: u32 = 3;

/// One table of the network namespace in which this was opened.
///
/// It is the only table that is ever changed through this.
#[derive(Debug)]
pub struct Client {
    transport: Transport,
    table: Box<str>,
    /// The number of the packet filter's state after our last transaction. Asking for it each time
    /// would double the system calls; should somebody else have come between, the kernel says so.
    generation: Option<u32>,
}

/// Why a transaction did not happen. Whatever the reason, nothing of it did, but for
/// [`Error::AnswersLost`] inside [`TransactionError::Netlink`], when that is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// The kernel refused a change, and so all of them.
    #[error("{change}: {refusal}")]
    Refused {
        /// The change, or the first of several.
        change: String,
        /// The kernel's words.
        refusal: Refusal,
    },
    /// Others changed their rules again and again while ours were on their way.
    #[error("the packet filter was changed by others during each of {tries} tries")]
    Overtaken {
        /// How often it was tried.
        tries: u32,
    },
    /// The socket failed, or the kernel could not be understood.
    #[error(transparent)]
    Netlink(#[from] Error),
}

impl TransactionError {
    /// The table in the kernel is not what the changes were worked out for: something is there
    /// already, or is not there, or is in use. [`Client::replace`] helps.
    pub fn is_out_of_step(&self) -> bool {
        let errnos = [Errno::NOENT, Errno::EXIST, Errno::BUSY];
        matches!(self, Self::Refused { refusal, .. } if errnos.contains(&refusal.errno))
    }

    /// Trying again later may work.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused { refusal, .. } => matches!(
                refusal.errno,
                Errno::NOMEM | Errno::NOBUFS | Errno::INTR | Errno::AGAIN
            ),
            Self::Overtaken { .. } => true,
            Self::Netlink(error) => error.is_transient(),
        }
    }

    /// The kernel has no nf_tables, or lacks a part of it that the rules need.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Refused { refusal, .. } => {
                matches!(refusal.errno, Errno::OPNOTSUPP | Errno::PROTONOSUPPORT)
            }
            Self::Overtaken { .. } => false,
            Self::Netlink(error) => error.is_unsupported(),
        }
    }
}

impl Client {
    /// Opens a socket for the table `name` of family `inet`, which need not exist.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open(name: &str) -> Result<Self, Error> {
        Ok(Self {
            transport: Transport::open(protocols::NETLINK_NETFILTER)?,
            table: name.into(),
            generation: None,
        })
    }

    /// The table's name.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The number by which notifications name this socket as the cause.
    pub fn port(&self) -> u32 {
        self.transport.port()
    }

    /// The number of the packet filter's state in which our table is what our last transaction made of
    /// it, or what [`Client::restore`] found where it had nothing to change. `None` before the first, and
    /// after one that failed or that somebody else's came before.
    pub fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// Makes `table` of whatever has its name, and changes only what differs: packets that pass
    /// meanwhile see what stays. Something there that is none of ours costs all of it
    /// ([`Client::replace`]).
    ///
    /// What `hide` takes out of what is there stays, unless all has to go.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn restore(
        &mut self,
        table: &Table,
        hide: impl Fn(&mut Table),
    ) -> Result<(), TransactionError> {
        for _ in 0..READS {
            self.generation = Some(self.read_generation()?);
            let Some(mut there) = existing::read(&mut self.transport, &self.table, table)? else {
                break;
            };
            hide(&mut there);
            match self.apply(&there.difference(table)) {
                // Somebody was faster.
                Err(error) if error.is_out_of_step() => {}
                other => return other,
            }
        }
        self.replace(table)
    }

    /// Whether the table exists.
    ///
    /// # Errors
    /// The socket's, and the kernel's but for `ENOENT`.
    pub fn exists(&mut self) -> Result<bool, Error> {
        Ok(existing::flags(&mut self.transport, &self.table)?.is_some())
    }

    /// Carries out all of `changes`, or none, in one moment that no packet falls into.
    ///
    /// An element that is there already with the same data is not a failure. Costs one send; memory
    /// and the kernel's time are proportional to the number of changes.
    ///
    /// # Errors
    /// [`TransactionError::is_out_of_step`] when the table is not as the changes suppose.
    pub fn apply(&mut self, changes: &[Change]) -> Result<(), TransactionError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.commit(Base::Existing, || changes.iter().cloned())
    }

    /// Puts `table` in the place of whatever has its name, in one transaction.
    ///
    /// Not seamless where there is a table already: while the kernel finishes, chains on their way out
    /// still run, without the elements of their maps. [`Client::restore`] is.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn replace(&mut self, table: &Table) -> Result<(), TransactionError> {
        self.commit(Base::Anew, || table.creation())
    }

    /// Deletes the table; that there is none is not a failure.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn delete(&mut self) -> Result<(), TransactionError> {
        self.commit(Base::Nothing, std::iter::empty)
    }

    fn commit<I: Iterator<Item = Change>>(
        &mut self,
        base: Base,
        changes: impl Fn() -> I,
    ) -> Result<(), TransactionError> {
        let mut grouping = Grouping::Together;
        let mut is_overtaken = false;
        for _ in 0..TRIES {
            let generation = match self.generation.take() {
                Some(expected) => expected,
                None => self.read_generation()?,
            };
            let mut encoded = transaction(&self.table, base, changes(), generation, grouping)?;
            let Some((place, answer)) = self.send(&mut encoded)? else {
                // Each transaction counts up by one, and leaves out 0 (`nf_tables_commit`).
                let now = generation.checked_add(1).unwrap_or(1);
                // What those who came before did to what stays of the table is not known.
                let is_known = !is_overtaken || base != Base::Existing;
                self.generation = is_known.then_some(now);
                return Ok(());
            };
            let RequestError::Refused(refusal) = answer else {
                return Err(Error::AnswersLost.into());
            };
            if refusal.errno == Errno::RESTART {
                is_overtaken = true;
                continue;
            }
            let subject = encoded.subjects.get(place).cloned().unwrap_or_default();
            if subject.len() > 1 {
                // Which of them it is shows when each has a message of its own.
                grouping = Grouping::Singly;
                continue;
            }
            let change = subject.into_iter().next().and_then(|at| changes().nth(at));
            return Err(TransactionError::Refused {
                change: self.words(change.as_ref()),
                refusal,
            });
        }
        Err(TransactionError::Overtaken { tries: TRIES })
    }

    /// The first failure, with the place of the message; `None` when all went well.
    fn send(
        &mut self,
        transaction: &mut Transaction,
    ) -> Result<Option<(usize, RequestError)>, Error> {
        // The frame itself is not acknowledged: before Linux 6.10 asking for that confuses the
        // kernel. The last message inside it stands for all.
        let last = transaction.batch.len().saturating_sub(2);
        let failures = self.transport.run_whole(&mut transaction.batch, last)?;
        Ok(failures.into_iter().next())
    }

    /// The number of the packet filter's present state, which every transaction of anybody changes.
    ///
    /// # Errors
    /// The socket's and the kernel's.
    pub fn read_generation(&mut self) -> Result<u32, Error> {
        let kind = message_type(NFT_MSG_GETGEN);
        self.transport.query(
            kind,
            "reading the packet filter's generation",
            |writer| writer.header(&[NFPROTO_UNSPEC, 0, 0, 0]),
            |message| match find(contents(message.payload), NFTA_GEN_ID)? {
                Some(attribute) => attribute.u32_be(),
                None => Err(Error::Malformed {
                    what: "a generation without its number",
                }),
            },
        )
    }

    fn words(&self, change: Option<&Change>) -> String {
        match change {
            Some(change) => change.in_table(&self.table).to_string(),
            None => format!("changing table inet {}", self.table),
        }
    }
}
