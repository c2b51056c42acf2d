// WikiText: the log-likelihood of whole pages, read in windows.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace based {

// lm-eval's detokeniser.
std::string wikitext_detokenized(std::string_view page);
// The pages of a file: each starts at a line that is a title of level 1, "= … =". The line break before a title belongs to no page; the one
// at the end of the file belongs to the last page. Text of white space alone is no page.
std::vector<std::string> wikitext_pages(std::string_view text);

}  // namespace based
