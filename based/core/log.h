// Messages on stderr with time and level. A progress line on the terminal is cleared first and redrawn afterwards.
#pragma once
#include <string>

namespace based {

enum class LogLevel { info, warning, error, off };

void set_log_level(LogLevel level);  // the lowest level that is printed; initially info
void log_info(const std::string& message);
void log_warning(const std::string& message);
void log_error(const std::string& message);

}  // namespace based
