// Messages on stderr, each with its time and level; a progress line that is being drawn is cleared first.
#pragma once
#include <string>

namespace based {

enum class LogLevel { debug, info, warning, error, off };

void set_log_level(LogLevel level);  // from this level on; info at the start
void log_debug(const std::string& message);
void log_info(const std::string& message);
void log_warning(const std::string& message);
void log_error(const std::string& message);

}  // namespace based
