// The names under which files.h writes before it renames.
#pragma once
#include <string>

namespace based {

// "a.tmp-<process>-<number>" for a file "a", another one each time. Of a long name only the beginning is in it, so that any name that the
// file system allows can be written.
std::string temporary_sibling(const std::string& path);

// Removes what writers left in `folder` when their process was killed. Only where nobody is writing there. Throws Error.
void remove_stale_temporaries(const std::string& folder);

// The folder for files that nobody is to find: TMPDIR's or /tmp. Throws Error that names TMPDIR where it is none.
std::string temporary_folder();

}  // namespace based
