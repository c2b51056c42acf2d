// The names under which files.h writes before it renames.
#pragma once
#include <string>

namespace based {

std::string temporary_sibling(const std::string& path);  // "a.tmp-<process>-<number>", another one each time

// Removes what writers left in `folder` when their process was killed. Only where nobody is writing there. Throws Error.
void remove_stale_temporaries(const std::string& folder);

}  // namespace based
