// Messages on stderr with time and level. A progress line on the terminal is cleared first and redrawn afterwards.
#pragma once
#include <string>

namespace based {

enum class LogLevel { info, warning, error, off };

void set_log_level(LogLevel level);  // the lowest level that is printed; initially info
void log_info(const std::string& message);
void log_warning(const std::string& message);
void log_error(const std::string& message);

// Messages are also appended to this file from now on. Call it before other threads log. Throws Error if the file cannot be opened.
void copy_log_to(const std::string& path);
// Appends a line to that file alone; does nothing if there is none. For messages that are printed without this log.
void copy_to_log(const std::string& line);

}  // namespace based
