// The HTML of a report: everything inline, readable from a telephone's width up.
#pragma once

#include <string>
#include <vector>

namespace evenkeel {

struct Figure {
    struct Key {
        std::string name, color;
        std::string mark;  // "line", "dashed", "broad", "dot" or "broad dot"
    };
    std::string title;
    std::string subtitle;
    std::string note;       // a sentence below the title, or ""
    std::vector<Key> keys;  // legend
    std::string spec;       // Vega, JSON; "": the run has no such numbers
    bool wide = false;
    bool raster = false;  // many cells: drawn on a canvas
    std::string group;    // a heading over it and the figures after it that have the same
    bool folded = false;  // opened by a click, below the others of its group
};

struct Fact {
    std::string value, label;
};

struct Setting {
    std::string path, value, standard;
};

struct PageTable {
    std::string title;
    std::string note;  // a sentence below the title, or ""
    std::vector<std::string> header;
    std::vector<std::vector<std::string>> rows;
    std::vector<std::size_t> words = {};  // columns of words, aligned to the left as the first is
};

struct Notice {
    std::string text;
    bool open = true;  // still so at the end
};

struct ReportPage {
    std::string title;
    std::string subtitle;
    std::vector<Fact> facts;
    std::vector<Notice> notices;        // what was wrong, above all else
    std::vector<std::string> findings;  // sentences, above the plots
    std::vector<PageTable> tables;      // below the plots
    std::vector<Figure> figures;
    std::string sample;             // generated text, or ""
    std::vector<Setting> settings;  // none: no heading either
};

// vega_directory: where the packaged modules are.
std::string to_html(const ReportPage& page, const std::string& vega_directory);

}  // namespace evenkeel
