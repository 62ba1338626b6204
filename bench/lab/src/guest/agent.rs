//! The guest's end of the serial line.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufReader, Read, Write},
    process,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::{
    fs::{Mode, OFlags, open},
    system::uname,
    termios::{OptionalActions, tcgetattr, tcsetattr},
};

use super::job::Running;
use crate::{
    cost,
    job::Job,
    machine::Greeting,
    wire::{Frame, Kind},
};

/// Serves the host until it asks to switch off.
///
/// # Errors
/// The line is broken, or the host has closed it.
pub(super) fn serve() -> Result<()> {
    let (line, serial) = Line::open().context("opening the serial line")?;
    let mut serial = BufReader::new(Counted {
        serial,
        line: line.clone(),
    });
    let greeting = Greeting {
        release: uname().release().to_string_lossy().into_owned(),
        syscall_cost: cost::measure(),
    };
    line.send(&Frame::new(0, Kind::Ready, greeting.encode()))?;
    let watched = line.clone();
    thread::spawn(move || exit_without_host(&watched));

    let mut jobs: HashMap<u32, Running> = HashMap::new();
    while let Some(frame) = Frame::read(&mut serial).context("reading from the host")? {
        let job = jobs.get(&frame.job);
        match frame.kind {
            Kind::Start => {
                let job = Job::decode(&frame.body)?;
                match Running::start(frame.job, &job, &line) {
                    Ok(running) => drop(jobs.insert(frame.job, running)),
                    Err(refused) => {
                        let words = format!("lab: {:#}\n", refused.error);
                        line.send(&Frame::new(frame.job, Kind::Stderr, words))?;
                        let status = refused.status.to_le_bytes();
                        line.send(&Frame::new(frame.job, Kind::Exit, status))?;
                    }
                }
            }
            Kind::Stdin => {
                if let Some(job) = job {
                    job.feed(frame.body);
                }
            }
            Kind::Resize => {
                if let Some(job) = job {
                    job.resize(&frame.body);
                }
            }
            Kind::Kill => {
                if let Some(job) = job {
                    job.kill();
                }
            }
            Kind::PowerOff => return Ok(()),
            Kind::Alive
            | Kind::Ready
            | Kind::Taken
            | Kind::Stdout
            | Kind::Stderr
            | Kind::Exit
            | Kind::Received => {}
        }
    }
    bail!("the host has closed the line")
}

/// Ends the agent when the host's end of the line is gone.
///
/// Reading alone does not notice each end of the host: if the host is killed while it has not read
/// all that the guest sent, its socket reports a reset (`ECONNRESET`) instead of the end, once, and
/// the serial driver of User-Mode Linux takes only the end for a hang-up. Sending fails in both cases.
fn exit_without_host(line: &Line) {
    while line.send(&Frame::new(0, Kind::Alive, [])).is_ok() {
        thread::sleep(ALIVE_INTERVAL);
    }
    process::exit(1)
}

/// Long enough to leave the guest idle, short enough for a guest that computes without a host.
const ALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// The writing end of the serial line, shared by all jobs.
#[derive(Clone, Debug)]
pub(super) struct Line {
    serial: Arc<Mutex<File>>,
}

impl Line {
    /// Opens the line in raw mode, so it passes every byte unchanged.
    fn open() -> io::Result<(Self, File)> {
        // Without NOCTTY the line would become the controlling terminal, and a byte of value 3 would
        // send SIGINT.
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let serial = File::from(open("/dev/ttyS0", flags, Mode::empty())?);
        let mut settings = tcgetattr(&serial)?;
        settings.make_raw();
        tcsetattr(&serial, OptionalActions::Now, &settings)?;
        let line = Self {
            serial: Arc::new(Mutex::new(serial.try_clone()?)),
        };
        Ok((line, serial))
    }

    pub(super) fn send(&self, frame: &Frame) -> io::Result<()> {
        let mut serial = self.serial.lock().unwrap_or_else(PoisonError::into_inner);
        serial.write_all(&frame.encode()?)
    }
}

/// The reading end of the serial line. It reports to the host how many bytes it has read.
struct Counted {
    serial: File,
    line: Line,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.serial.read(buffer)?;
        if length == 0 {
            // The host has hung up; sending could block forever.
            return Ok(0);
        }
        let count = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        self.line.send(&Frame::new(0, Kind::Received, count))?;
        Ok(length)
    }
}
