// Writes results to standard output and messages to stderr. A failed write to standard output throws Error, at the latest in main.
#pragma once
#include <ostream>
#include <string>

namespace based::apps {

// A buffered stream for arbitrary bytes. Throws Error "standard output cannot be written: <reason>" when the buffer is flushed.
std::ostream& output();

// Prints a line and flushes. Control characters are escaped as in JSON, so that names from files can neither control the terminal nor forge
// lines. A line of JSON is not changed by that.
void print_line(const std::string& text);

// Prints text unchanged and flushes.
void print_text(const std::string& text);

// Prints "based: ", the text with escaped control characters, and a line break to stderr. The middle of long lines is left out. Failed
// writes are ignored.
void print_message(const std::string& text);

}  // namespace based::apps
