// Names of the temporary files that files.h writes before it renames them.
#pragma once
#include <string>

namespace based {

// Returns "a.tmp-<process>-<number>" for a file "a", a new name in each call. Long names are cut, so that every file name that the file
// system allows has a temporary sibling.
std::string temporary_sibling(const std::string& path);

// Removes temporaries that killed processes left in `folder`. No other process may be writing there. Throws Error.
void remove_stale_temporaries(const std::string& folder);

// The system's folder for temporary files: TMPDIR or /tmp. Throws Error that names TMPDIR if it is not a folder.
std::string temporary_folder();

}  // namespace based
