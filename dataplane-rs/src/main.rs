//! The program: parses its settings and runs the library.
use std::process::ExitCode;
use tailrace_dataplane::config::{self, Command, EXIT_USAGE, USAGE};
use tailrace_dataplane::process;
use tailrace_dataplane::runs::inspect;

fn main() -> ExitCode {
    match config::parse(std::env::args().skip(1)) {
        Ok(Command::Run(config)) => process::main(*config),
        Ok(Command::Help) => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        Ok(Command::Version) => {
            println!("tailrace-dataplane {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Ok(Command::SpoolStatus(data)) => match inspect::status(&data) {
            Ok(status) => {
                println!("{status}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("the spool cannot be read: {error}");
                ExitCode::FAILURE
            }
        },
        Err(faults) => {
            eprint!("{faults}\n{USAGE}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}
