// Messages for exceptions that end a command.
#pragma once
#include <exception>
#include <string>

namespace based {

// The message of an exception, without LibTorch's backtrace. If memory ran out, it tells the requested size and the options to reduce.
std::string failure_line(const std::exception& error);

}  // namespace based
