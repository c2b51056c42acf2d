// The one way out for results: standard output. What cannot be written is an Error that says why, at the latest when main flushes.
#pragma once
#include <ostream>
#include <string>

namespace based::apps {

// Buffered, any bytes; throws Error "standard output cannot be written: <reason>" where the buffer is written.
std::ostream& output();

// A line of words and figures, written at once. Names out of files cannot steer the terminal or forge lines: control characters in it are
// escaped, as JSON does, so that a line of JSON stays what it is.
void print_line(const std::string& text);

// Text that is itself the result, as it is, written at once.
void print_text(const std::string& text);

// The same on stderr: "based: " before it and a line break after it, long lines without their middle. Failed writes are ignored.
void print_message(const std::string& text);

}  // namespace based::apps
