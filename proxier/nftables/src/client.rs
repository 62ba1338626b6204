//! Our table in the kernel.

use std::borrow::Borrow;

use netlink::attr::find;
use netlink::transport::{RequestError, Transport, protocols};
use netlink::{Error, Refusal};
use rustix::io::Errno;

use crate::command::Command;
use crate::existing;
use crate::message::{
    Base, ExistingArp, Grouping, Transaction, contents, message_type, transaction,
};
use crate::set::Set;
use crate::sys::*;
use crate::table::Table;

/// The number of times that a transaction names the generation on which it is based. If other programs' transactions
/// came first each time, it is sent without: a large one, which takes long to encode, might never be the first.
const TRIES: u32 = 3;

/// The most commands of a transaction that creates a part of a table: its message has less than a megabyte. The kernel needs
/// a copy of it in one piece, and several times as much for what it has not committed.
const MOST_COMMANDS: usize = 8_192;

/// The number of times that [`RulesClient::restore`] reads the table if another program keeps changing it.
const READS: u32 = 3;

/// The name of the table that [`RulesClient::supports_arp`] adds and deletes.
const PROBE: &str = "ipvs-proxier-probe";

/// A socket that reads and changes one table of its network namespace, and its companion.
#[derive(Debug)]
pub struct RulesClient {
    transport: Transport,
    table: Box<str>,
    /// The generation after our last transaction. Reading it before each transaction would double the
    /// system calls. If another program's transaction came between, the kernel refuses ours
    /// (`ERESTART`), which is sent again.
    generation: Option<u32>,
    /// Whether another program may have changed the table before our last transaction, or the answer to one was lost. Lasts
    /// until the table is read or replaced.
    is_doubtful: bool,
}

/// The error of a transaction.
///
/// The kernel has applied nothing of the transaction. The exception is [`Error::AnswersLost`] inside
/// [`TransactionError::Netlink`], after which it may have applied all of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// The kernel refused a command, and therefore the whole transaction.
    #[error("{command}: {refusal}")]
    Refused {
        /// The first refused command, as nft takes it.
        command: String,
        /// The kernel's error.
        refusal: Refusal,
    },
    /// The kernel has no nf_tables.
    #[error(
        "the kernel has no nf_tables and could not load the module nf_tables (kernel option \
         CONFIG_NF_TABLES)"
    )]
    NoNfTables,
    /// The socket failed, or the kernel's answer is malformed.
    #[error(transparent)]
    Netlink(#[from] Error),
}

impl TransactionError {
    /// Returns whether the kernel's table is not the one for which the commands were made.
    ///
    /// An object exists already, is missing or is in use. [`RulesClient::restore`] makes them equal again.
    pub fn is_out_of_step(&self) -> bool {
        let errnos = [Errno::NOENT, Errno::EXIST, Errno::BUSY];
        matches!(self, Self::Refused { refusal, .. } if errnos.contains(&refusal.errno))
    }

    /// Returns whether the same transaction may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused { refusal, .. } => matches!(
                refusal.errno,
                Errno::NOMEM | Errno::NOBUFS | Errno::INTR | Errno::AGAIN
            ),
            Self::NoNfTables => false,
            Self::Netlink(error) => error.is_transient(),
        }
    }

    /// Returns whether the kernel lacks nf_tables or a part of it that the rules need.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Refused { refusal, .. } => {
                matches!(refusal.errno, Errno::OPNOTSUPP | Errno::PROTONOSUPPORT)
            }
            Self::NoNfTables => true,
            Self::Netlink(error) => error.is_unsupported(),
        }
    }
}

impl RulesClient {
    /// Opens a socket for the table `name` of family `inet`, which need not exist.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open(name: &str) -> Result<Self, Error> {
        Ok(Self {
            transport: Transport::open(protocols::NETLINK_NETFILTER)?,
            table: name.into(),
            generation: None,
            is_doubtful: false,
        })
    }

    /// Returns the table's name.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Returns the socket.
    pub(crate) fn transport(&mut self) -> &mut Transport {
        &mut self.transport
    }

    /// Returns the socket's port, which notifications name as the cause of a change.
    pub fn port(&self) -> u32 {
        self.transport.port()
    }

    /// Returns the generation in which the table is as we last wrote it.
    ///
    /// That is the generation after our last transaction, or the one that [`RulesClient::restore`] read if
    /// nothing differed. `None` before the first transaction, after a failure, and once other programs'
    /// transactions came before ours, until the table is read or replaced.
    pub fn generation(&self) -> Option<u32> {
        self.generation.filter(|_| !self.is_doubtful)
    }

    /// Makes the kernel's table equal to `table` and changes only what differs.
    ///
    /// Parts of the table that do not differ stay in effect without interruption. If the kernel's table
    /// has something that ours never has (a set of another type, a chain at another hook), the whole
    /// table is replaced ([`RulesClient::replace`]).
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn restore(&mut self, table: &Table) -> Result<(), TransactionError> {
        for _ in 0..READS {
            let Some(commands) = self.difference(table)? else {
                break;
            };
            match self.apply(&commands) {
                // Another transaction came between the read and ours.
                Err(error) if error.is_out_of_step() => {}
                other => return other,
            }
        }
        self.replace(table)
    }

    /// Reads the kernel's table and returns the commands that make it equal to `table`; `None` if it is missing or only
    /// [`RulesClient::replace`] can.
    ///
    /// The next transaction is based on what was read: if another one came between, it is not known to be in step.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn difference(&mut self, table: &Table) -> Result<Option<Vec<Command>>, TransactionError> {
        // Before the table: a transaction between the two reads is noticed, because the kernel
        // refuses ours.
        self.generation = Some(self.base_generation()?);
        let existing = existing::read(&mut self.transport, &self.table, table)?;
        self.is_doubtful = false;
        Ok(existing.map(|existing| existing.difference(table)))
    }

    /// Reads the elements of a set of the kernel's table into a copy of `set`. None if the kernel has no such set, or
    /// elements in it that ours never have.
    ///
    /// # Errors
    /// Those of the socket and of the dump.
    pub fn read_elements(&mut self, set: &Set) -> Result<Set, Error> {
        let found = existing::with_elements(&mut self.transport, NFPROTO_INET, &self.table, set);
        match found {
            Err(error) if error.errno() == Some(Errno::NOENT) || is_subsystem_missing(&error) => {
                Ok(set.without_elements())
            }
            other => Ok(other?.unwrap_or_else(|| set.without_elements())),
        }
    }

    /// Returns whether the table exists.
    ///
    /// # Errors
    /// Those of the socket and of the kernel, except `ENOENT`.
    pub fn exists(&mut self) -> Result<bool, Error> {
        match existing::flags(&mut self.transport, NFPROTO_INET, &self.table) {
            // No nf_tables, no table.
            Err(error) if is_subsystem_missing(&error) => Ok(false),
            other => Ok(other?.is_some()),
        }
    }

    fn existing_arp(&mut self) -> Result<ExistingArp, Error> {
        match existing::flags(&mut self.transport, NFPROTO_ARP, &self.table) {
            Err(error) if is_subsystem_missing(&error) => Ok(ExistingArp::Missing),
            other => Ok(match other? {
                Some(_) => ExistingArp::Present,
                None => ExistingArp::Missing,
            }),
        }
    }

    /// Returns whether the kernel supports tables of family `arp` (`CONFIG_NF_TABLES_ARP`).
    ///
    /// If ours does not exist, adds and deletes an empty one in one transaction. That changes the
    /// generation, after which [`RulesClient::restore`] has to read the rules back.
    ///
    /// # Errors
    /// Those of the kernel, except `EOPNOTSUPP`.
    pub fn supports_arp(&mut self) -> Result<bool, TransactionError> {
        if self.existing_arp()? == ExistingArp::Present {
            return Ok(true);
        }
        let table = std::mem::replace(&mut self.table, PROBE.into());
        let probed = self.apply(&[Command::AddArpTable, Command::DeleteArpTable]);
        self.table = table;
        match probed {
            Err(error) if error.is_unsupported() => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Applies all commands in one transaction. A packet sees the rules before or after all of them.
    ///
    /// Adding an existing element with the same data succeeds. Costs one send, and memory and kernel
    /// time proportional to the number of commands.
    ///
    /// # Errors
    /// [`TransactionError::is_out_of_step`] if the commands do not fit the kernel's table.
    pub fn apply(&mut self, commands: &[Command]) -> Result<(), TransactionError> {
        if commands.is_empty() {
            return Ok(());
        }
        self.commit(Base::Existing, || commands.iter())
    }

    /// Replaces the kernel's table in one transaction.
    ///
    /// Packets that pass meanwhile may be rejected, or masqueraded without need: while the kernel commits, the
    /// old chains still run, but their maps are already empty. [`RulesClient::restore`] avoids that.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn replace(&mut self, table: &Table) -> Result<(), TransactionError> {
        let base = Base::New(self.existing_arp()?);
        self.commit(base, || table.creation())
    }

    /// Replaces the kernel's table by one that no other socket can change, and that the kernel deletes when this client is
    /// dropped or its process ends. Kernels before 5.12 know no owners; there, [`RulesClient::delete`] has to.
    ///
    /// # Errors
    /// Those of the kernel; `EPERM` if another socket owns the table.
    pub fn replace_owned(&mut self, table: &Table) -> Result<(), TransactionError> {
        match self.commit(Base::Owned, || table.creation()) {
            Err(TransactionError::Refused { refusal, .. })
                if [Errno::INVAL, Errno::OPNOTSUPP].contains(&refusal.errno) =>
            {
                self.commit(Base::New(ExistingArp::Missing), || table.creation())
            }
            other => other,
        }
    }

    /// Creates the table of `frame` and of what `pieces` add to it, in transactions of bounded size. A packet sees all rules
    /// or none: the chains of `frame` at hooks come with the last transaction. Calls `each` with every command, in order.
    ///
    /// A table that exists is deleted first, and its rules with it, so this is for a missing one. If a transaction fails,
    /// what those before it wrote stays, and has no effect; [`RulesClient::difference`] finds it. If
    /// [`RulesClient::generation`] is `None` afterwards, another program's transaction came between, which may have
    /// changed it.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn create(
        &mut self,
        frame: &Table,
        pieces: impl IntoIterator<Item = Vec<Command>>,
        mut each: impl FnMut(&Command),
    ) -> Result<(), TransactionError> {
        let mut hidden = frame.clone();
        hidden.chains.retain(|_, chain| chain.hook.is_none());
        let mut base = Base::New(self.existing_arp()?);
        let mut commit = |commands: &[Command]| {
            commands.iter().for_each(&mut each);
            self.commit(base, || commands.iter())?;
            base = Base::Existing;
            Ok::<_, TransactionError>(())
        };
        let mut waiting: Vec<Command> = hidden.creation().collect();
        for piece in pieces {
            waiting.extend(piece);
            while waiting.len() >= MOST_COMMANDS {
                commit(&waiting[..MOST_COMMANDS])?;
                waiting.drain(..MOST_COMMANDS);
            }
        }
        waiting.extend(hidden.additions(frame));
        commit(&waiting)
    }

    /// Deletes the table, if it exists. A packet sees all its rules or none.
    ///
    /// That takes two transactions. A chain keeps the rules that are deleted together with it
    /// (`nf_tables_commit_chain_prepare`), and runs until the kernel takes it from its hook, later in
    /// `nf_tables_commit`. But its verdict maps are empty from the start of the new generation
    /// (`nft_mapelem_deactivate`). A packet would miss `external-4`, find its frontend in `frontends-4`, and
    /// be masqueraded against policy Local. So the first transaction deletes the rules only.
    ///
    /// # Errors
    /// Those of the kernel. The table may be without rules then.
    pub fn delete(&mut self) -> Result<(), TransactionError> {
        let arp = self.existing_arp()?;
        for base in [Base::Emptied(arp), Base::Deleted(arp)] {
            match self.commit(base, std::iter::empty::<Command>) {
                Err(TransactionError::NoNfTables) => return Ok(()),
                other => other?,
            }
        }
        Ok(())
    }

    fn commit<I: Iterator<Item: Borrow<Command>>>(
        &mut self,
        base: Base,
        commands: impl Fn() -> I,
    ) -> Result<(), TransactionError> {
        let mut grouping = Grouping::ManyElements;
        let mut overtaken = 0;
        loop {
            let generation = match self.generation.take() {
                None if overtaken < TRIES => Some(self.base_generation()?),
                expected => expected,
            };
            let mut encoded = transaction(&self.table, base, commands(), generation, grouping)?;
            // The kernel may have applied it if no answer comes.
            let doubt = std::mem::replace(&mut self.is_doubtful, true);
            let Some((index, answer)) = self.send(&mut encoded)? else {
                // A commit adds 1 to the generation, and skips 0 (`nf_tables_commit`).
                self.generation = generation.map(|it| it.checked_add(1).unwrap_or(1));
                // The other transaction may have changed a part of our table that we keep.
                let is_partial = base == Base::Existing && (doubt || overtaken > 0);
                self.is_doubtful = is_partial || self.generation.is_none();
                return Ok(());
            };
            let RequestError::Refused(refusal) = answer else {
                return Err(Error::AnswersLost.into());
            };
            self.is_doubtful = doubt;
            if refusal.errno == Errno::RESTART && generation.is_some() {
                overtaken += 1;
                continue;
            }
            let subject = encoded.subjects.get(index).cloned().unwrap_or_default();
            if subject.len() > 1 {
                // The kernel refuses a message; the next try shows which of its commands is at fault.
                grouping = Grouping::OneCommand;
                continue;
            }
            let command = subject.into_iter().next().and_then(|at| commands().nth(at));
            return Err(TransactionError::Refused {
                command: self.describe(command.as_ref().map(Borrow::borrow)),
                refusal,
            });
        }
    }

    /// Returns the first failure and the index of its message; `None` if there is none.
    fn send(
        &mut self,
        transaction: &mut Transaction,
    ) -> Result<Option<(usize, RequestError)>, Error> {
        // Ask for an acknowledgement of the last message before the end of the batch. Before Linux
        // 6.10 the kernel does not handle that request on the begin and end messages themselves.
        let last = transaction.batch.len().saturating_sub(2);
        let failures = self.transport.run_whole(&mut transaction.batch, last)?;
        Ok(failures.into_iter().next())
    }

    /// Reads the packet filter's generation, a number that changes with each transaction of any program.
    ///
    /// # Errors
    /// Those of the socket and of the kernel.
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

    /// Reads the generation on which a transaction is based.
    fn base_generation(&mut self) -> Result<u32, TransactionError> {
        // The request has no field that nf_tables could reject as invalid.
        self.read_generation().map_err(|error| match &error {
            error if is_subsystem_missing(error) => TransactionError::NoNfTables,
            _ => error.into(),
        })
    }

    fn describe(&self, command: Option<&Command>) -> String {
        match command {
            Some(command) => command.in_table(&self.table).to_string(),
            None => format!("changing table inet {}", self.table),
        }
    }
}

/// Returns whether a request failed because its nfnetlink subsystem is not registered.
///
/// `nfnetlink_rcv_msg` (Linux 6.1) first tries to load the module `nfnetlink-subsys-N`, and then
/// answers `EINVAL`.
fn is_subsystem_missing(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.errno == Errno::INVAL)
}
