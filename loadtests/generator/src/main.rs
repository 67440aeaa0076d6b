//! The program: parses its settings, runs the load, prints one JSON report.
//! Exit 0: fine; 1: wrong answers; 2: it could not run; 3: void, the offered load was not delivered; 64: bad settings.
use std::process::ExitCode;

use clap::Parser as _;
use tailrace_generator::{drive, settings::Arguments};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 64 } else { 0 });
        }
    };
    let load = match arguments.load() {
        Ok(load) => load,
        Err(error) => {
            eprintln!("tailrace-generator: {error}");
            return ExitCode::from(64);
        }
    };
    match drive::run(&load) {
        Ok(report) => {
            let text = report.to_json();
            println!("{text}");
            if let Some(path) = &load.report
                && let Err(error) = std::fs::write(path, text + "\n")
            {
                eprintln!("tailrace-generator: cannot write the report: {error}");
                return ExitCode::from(2);
            }
            ExitCode::from(report.exit_code())
        }
        Err(error) => {
            eprintln!("tailrace-generator: {error}");
            ExitCode::from(2)
        }
    }
}
