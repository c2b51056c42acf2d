// What the program says where it cannot go on.
#pragma once
#include <exception>
#include <string>

namespace based {

// The message of any exception without LibTorch's backtrace. Where memory ran out: how much was asked for, and what to make smaller.
std::string failure_line(const std::exception& error);

}  // namespace based
