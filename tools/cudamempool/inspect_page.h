/* The page of `inspect --html` as it is in html/, put into the program when it is built (page_arrays.cmake). Text with a zero behind it. */
#ifndef TOOL_INSPECT_PAGE_H
#define TOOL_INSPECT_PAGE_H

extern const char inspect_page_html[]; /* with <!--style-->, <!--data--> and <!--script--> where those go */
extern const char inspect_page_css[];
extern const char inspect_page_js[];

#endif
