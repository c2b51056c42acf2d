// The descriptors of standard input, output and error.
#pragma once
#include <string_view>

namespace based {

// Those that the program was started without are opened on /dev/null, so that no file that is opened later takes their number. Input and
// output are opened the wrong way round: reading or writing them stays an error.
void open_standard_descriptors();

// Writes all of `bytes`, whatever they are. Returns 0, or the errno that kept a part from being written.
int write_all(int descriptor, std::string_view bytes);

}  // namespace based
