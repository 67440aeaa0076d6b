//! The program: parses its settings and runs the library.
fn main() {}
