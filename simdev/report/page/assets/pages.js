// What draws the data of each kind of page.
const PAGES = { run: StepPage, compare: ComparePage, results: RankedPage, plans: RankedPage, search: SearchPage };
