// The descriptors of standard input, output and error.
#pragma once
#include <string_view>

namespace based {

// Opens /dev/null for those descriptors that the program was started without, so that no file opened later gets their number. Input is
// opened for writing and output for reading, so that using them is still an error.
void open_standard_descriptors();

// Writes all of `bytes`, in several writes if needed. Returns 0, or the errno of the write that failed.
int write_all(int descriptor, std::string_view bytes);

}  // namespace based
