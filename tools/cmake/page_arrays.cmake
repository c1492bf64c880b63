# Writes OUT, a C file with the page of `cudamempool inspect --html` as bytes: inspect_page_html, _css and _js, each ended by a zero. SOURCES
# are its files; those of one ending follow each other.

foreach(kind html css js)
    set(hex "")
    foreach(source IN LISTS SOURCES)
        if(source MATCHES "\\.${kind}$")
            file(READ ${source} one HEX)
            string(APPEND hex "${one}")
        endif()
    endforeach()
    string(REGEX REPLACE "(..)" "0x\\1," hex "${hex}")
    string(APPEND text "const char inspect_page_${kind}[] = {${hex}0};\n")
endforeach()
file(WRITE ${OUT} "/* Made from tools/cudamempool/html by page_arrays.cmake. */\n#include \"inspect_page.h\"\n${text}")
