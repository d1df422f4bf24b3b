"""A plan as one HTML file that opens without a network: `page.report_page`; a section of it in each file.

page         the sections of one plan; `compared` those of several
html_file    sections and Bokeh's script in one file
markup       HTML of tables and texts; the only place where foreign text becomes HTML
charts       what all charts have in common: Bokeh's figure, colours, axes
choice       what was chosen, why, and why the runners-up lost
model        the model's blocks, coloured by stage; unfolded, their ops and how each is split
devices      machines and devices, which stage each holds, who sends what to whom
steps        the step, event by event
memory       bytes over the step against what a device has
costs        seconds and bytes, stacked
roofline     the ops by intensity and rate
measured     a run beside the prediction
search       the best plan so far over the seconds of the search
"""
